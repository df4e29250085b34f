"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data sets; tests that need it are skipped where it is not set."""
    folder = os.environ.get("BRIDGEMEM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real data sets: set BRIDGEMEM_DATA to their folder")
    return Path(folder)
