"""Edge lists as the Temporal Graph Benchmark has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def edge_list(folder: Path, name: str = "tkgl-smallpedia", *, numbers: bool = False, n: int = 400) -> Path:
    """An edge list in the order of its times, with rows of one time in no order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    times = np.sort(rng.integers(1990, 2020, n)) if not numbers else np.sort(rng.integers(0, 40, n)) * 86_400 + 10**9
    who, what = ("{}", "{}") if numbers else ("Q{}", "P{}")
    rows = [
        f"{t},{who.format(rng.integers(25))},{who.format(rng.integers(25))},{what.format(rng.integers(4))}"
        for t in times.tolist()
    ]
    path = folder / f"{name}_edgelist.csv"
    path.write_text("\n".join(["ts,head,tail,relation_type", *rows]) + "\n")
    return path
