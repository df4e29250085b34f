"""Every error says what to do: each sentence that is raised names the remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bridgemem
from bridgemem import errors

PACKAGE = Path(bridgemem.__file__).resolve().parent
OWN = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
# what to do: a verb, a command, an option, the values that are permitted, or a last clause that is filled in
VERBS = (
    "add|ask|begin|call|check|choose|compare|continue|correct|delete|derive|drop|evaluate|expected|fetch|fill|finish|fit|fix|"
    "give|import|install|join|keep|leave|make|measure|merge|mine|move|name|number|push|put|raise|read|remove|rename|repair|"
    "restore|return|run|save|score|select|send|separate|set|sort|split|start|stop|take|train|try|uninstall|unpack|use|wait|write"
)
REMEDY = re.compile(
    rf"`|--\w|, not |\bmust\b|\bneeds?\b|\b(?:is|are) one of\b|known are|[;:] [^;:]*\{{\}}[^;:]*\.$|\b(?:{VERBS})\b",
    re.IGNORECASE,
)
# sentences that consist of what another one says, or that are the end of the matter
WHOLE = re.compile(
    r"^[\s.{}]*$|^this store was closed|is not permitted|has ended|nothing was changed here|the page is at"
)


def raised() -> Iterator[tuple[str, str]]:
    """Place and text of every sentence in the sources that a child of BridgeMemError is raised with."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            called, said = node.exc.func, node.exc.args[0]
            if getattr(called, "id", getattr(called, "attr", "")) in OWN:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", _text(said)


def _text(node: ast.expr) -> str:
    """A sentence, with {} for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{}"


def test_every_sentence_that_is_raised_names_the_remedy() -> None:
    found = list(raised())
    assert len(found) > 400
    # what does not end with a point is put into another sentence
    whole = [(where, text) for where, text in found if text.endswith(".") and not WHOLE.search(text)]
    assert [one for one in whole if not REMEDY.search(one[1])] == []


@pytest.mark.parametrize("name", sorted(OWN))
def test_an_error_has_a_code_of_its_own_and_says_when_it_is_raised(name: str) -> None:
    kind = getattr(errors, name)
    assert re.fullmatch(r"[a-z_]+", kind.code)
    assert kind.__doc__
    assert kind.__doc__.splitlines()[0].endswith((".", "suggested."))
