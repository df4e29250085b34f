"""How many cases the attacks tried: a test counts as one, or as many as it says, and the sum is told at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent.name


@pytest.fixture
def count_cases(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Say how many cases a test tried, where it tries several in a loop; more than one call adds up."""

    def count(cases: int) -> None:
        # a property of the report, which also comes from the processes of pytest-xdist
        request.node.user_properties.append(("cases", cases))

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried = {"passed": 0, "failed": 0}
    for outcome in tried:
        for report in terminalreporter.stats.get(outcome, []):
            if report.when == "call" and f"/{HERE}/" in f"/{report.nodeid}":
                tried[outcome] += sum(n for name, n in report.user_properties if name == "cases") or 1
    if any(tried.values()):
        failed = f", {tried['failed']:,} of them in tests that failed" if tried["failed"] else ""
        terminalreporter.write_line(f"attacks: {sum(tried.values()):,} cases{failed}")
