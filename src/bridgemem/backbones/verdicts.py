"""Verdicts: what a check found, shown, not shown or not checkable, and one word for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bridgemem.showing import html_table

SHOWN, NOT_SHOWN, NOT_CHECKABLE = "shown", "not shown", "not checkable"
MAKERS_WORD = "its maker's word"


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, whether it holds (None where that cannot be checked), and what was seen."""

    check: str
    passed: bool | None
    seen: str

    @property
    def verdict(self) -> str:
        """shown, not shown or not checkable."""
        return {True: SHOWN, False: NOT_SHOWN, None: NOT_CHECKABLE}[self.passed]

    def __str__(self) -> str:
        return f"{self.verdict}: {self.check}: {self.seen}"


def all_passed(findings: Sequence[Finding]) -> bool | None:
    """True only if everything was shown; False where anything was not, and else None."""
    if any(finding.passed is False for finding in findings):
        return False
    return None if any(finding.passed is None for finding in findings) else True


def overall(findings: Sequence[Finding]) -> str:
    """One word for all checks: "pass" only if every one was made and held."""
    passed, unknown = all_passed(findings), sum(finding.passed is None for finding in findings)
    word = {True: "pass", False: "fail", None: "nothing failed"}[passed]
    return word + (f", {unknown} {NOT_CHECKABLE}" if unknown else "")


@dataclass(frozen=True)
class Checked:
    """The findings of `check_backbone`; prints one line per check.

    Attributes:
        name: The model.
        findings: One per check: what was checked, the verdict, and what was seen.

    Example:
        >>> from bridgemem.backbones.recurrence import Recurrence
        >>> found = bm.check_backbone(Recurrence, data)
        >>> found.word, found.passed
        ('pass', True)
    """

    name: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool | None:
        """True if every check passed, False if one failed, None if none failed but some could not be made."""
        return all_passed(self.findings)

    @property
    def word(self) -> str:
        """ "pass", "fail" or "nothing failed", with the number of checks that could not be made."""
        return overall(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), f"{self.name}: {self.word}"])

    def __repr__(self) -> str:
        return f"Checked({self.name!r}: {self.word})"

    def _repr_html_(self) -> str:
        rows = [(one.verdict, one.check, one.seen) for one in self.findings]
        return html_table(f"{self.name}: {self.word}", ["verdict", "check", "seen"], rows)
