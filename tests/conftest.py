"""Fixtures shared by all tests."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import pytest

# the files that take longest, so that no worker is left alone with one of them at the end
SLOW = (
    "outofcore/test_spark.py",
    "outofcore/test_spark_cases.py",
    "live/test_forecasting.py",
    "live/test_later_names.py",
    "browser/test_explorer.py",
    "cli/test_model.py",
    "service/test_app.py",
    "paper/test_training_free_rows.py",
    "paper/test_table2.py",
    "events/test_datasets.py",
    "residuals/test_learned.py",
    "test_packaging.py",
    "test_docs_site.py",
    "test_default_benchmark.py",
    "test_tutorials.py",
    "test_speed.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files come first; all others keep their order."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path, len(SLOW)))


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
