"""Docstrings as mkdocstrings wants them: an `Example:` is shown as code, as `Examples:` is."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

HEADING = re.compile(r"^Example:$", re.MULTILINE)


class Examples(Extension):
    """Reads the heading `Example:` as `Examples:`, which is the section that holds code."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = HEADING.sub("Examples:", obj.docstring.value)
