"""Millions of events: a fit from a mined folder is that of the same events in memory, in a fraction of the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("benchmarks", reason="needs benchmarks/ of the repository; run python -m pytest there")

from benchmarks.outofcore import generate, run, serve

EVENTS = 2_500_000
MANY = 25_000_000
SAMPLES = ("--set", "max_examples=20000", "--set", "max_queries=1000", "--learned-set", "train_queries=1500")
SAMPLES += ("--learned-set", "valid_queries=1000")
PEAK = """
import json, resource, sys
from bridgemem.cli.main import main
try:
    main()
finally:
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss), file=sys.stderr)
"""


def home_of(tmp_path: Path) -> Path:
    """Where events and mined folders lie, which may be kept for a next time."""
    return Path(os.environ.get("BRIDGEMEM_SCALE_DATA") or tmp_path)


def command(*arguments: str | Path) -> float:
    """Run a command in a process of its own; its peak of resident memory in GB."""
    program = [sys.executable, "-c", PEAK, *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stderr.splitlines()[-1])) / 1e6


@pytest.mark.long
def test_a_fit_of_millions_of_events_is_that_in_memory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    home = home_of(tmp_path)
    files, mined, peaks = generate(home, EVENTS), home / f"mined-{EVENTS}", {}
    if not (mined / "mined.json").is_file():
        peaks["mine"] = command("mine", files / "*.parquet", "--out", mined, "--memory", "1500MB", "-q")
    # so that both data sets have one name
    events = tmp_path / f"mined-{EVENTS}.npz"
    command("data", "import", *sorted(files.glob("*.parquet")), "--out", events, "-q")
    for name, source in (("disk", mined), ("memory", events)):
        run = tmp_path / name
        peaks[f"fit, {name}"] = command("fit", "-d", source, "--out", run, *SAMPLES, "-q")
        peaks[f"evaluate, {name}"] = command("evaluate", run, "--queries", "500", "-q")
    for file in ("model.safetensors", "backbone/weights.safetensors"):
        here, there = (load_file(tmp_path / name / file) for name in ("memory", "disk"))
        assert here.keys() == there.keys()
        assert all(torch.equal(values, here[tensor]) for tensor, values in there.items())
    calibrated = [json.loads((tmp_path / name / "calibration.json").read_text()) for name in ("memory", "disk")]
    assert calibrated[0] == calibrated[1]
    ranks = [pd.read_parquet(tmp_path / name / "ranks.parquet") for name in ("memory", "disk")]
    pd.testing.assert_frame_equal(ranks[0], ranks[1], check_exact=True)
    assert max(peak for name, peak in peaks.items() if "memory" not in name) < 2
    record_property("events", EVENTS)
    record_property("peak_gb", {name: round(peak, 2) for name, peak in peaks.items()})


@pytest.mark.long
def test_ten_times_as_many_events_need_less_than_two_gigabytes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each command of the way from files to forecasts."""
    home = home_of(tmp_path)
    files, mined, made, log = generate(home, MANY), home / f"mined-{MANY}", tmp_path / "run", tmp_path / "log.txt"
    done = {}
    if not (mined / "mined.json").is_file():
        done["mine"] = run(["mine", str(files / "*.parquet"), "--out", str(mined), "--memory", "1500MB"], log)
    done |= {
        "fit": run(["fit", "-d", str(mined), "--out", str(made), *SAMPLES], log),
        "evaluate": run(["evaluate", str(made), "--queries", "2000"], log),
        "serve": serve(made, log),
    }
    record_property("events", MANY)
    record_property("fit_options", " ".join(SAMPLES))
    record_property("peak_gb", {name: round(of.resident / 1e9, 2) for name, of in done.items()})
    record_property("processor_seconds", {name: round(of.processor) for name, of in done.items()})
    assert max(of.resident for of in done.values()) < 2e9
