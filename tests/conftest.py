"""Fixtures shared by all tests."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data sets; tests that need it are skipped where it is not set."""
    folder = os.environ.get("BRIDGEMEM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real data sets: set BRIDGEMEM_DATA to their folder")
    return Path(folder)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a long proof, and its `record_property` figures, in the file that `make test-long` names."""
    records = os.environ.get("BRIDGEMEM_LONG_RECORDS")
    if not records or report.when != "call" or "long" not in report.keywords:
        return
    line = {
        "proof": report.nodeid,
        "outcome": report.outcome,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seconds": round(report.duration, 1),
        **dict(report.user_properties),
    }
    with Path(records).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
