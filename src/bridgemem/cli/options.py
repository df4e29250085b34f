"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the named data sets; default $BRIDGEMEM_DATA, then the cache."),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Seed = Annotated[int, typer.Option("--seed", help="Fixes every random choice.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting as name=value; may be given several times.")]
Step = Annotated[
    str | None, typer.Option("--step", help="Length of a time step: a whole number, or hour, day, week, 15min, 7d.")
]
Data = Annotated[
    str, typer.Option("--data", "-d", help="A named data set, world, a packed .npz, or a CSV/TSV/Parquet file.")
]
Records = Annotated[Path, typer.Option("--records", help="File of measured records, one JSON line each.")]


def whole_or_text(step: str | None) -> str | int | None:
    """A step as the reader takes it: whole numbers as numbers."""
    return int(step) if step is not None and step.isdigit() else step


def seeds_of(text: str) -> tuple[int, ...]:
    """Seeds from '42', '42,43' or '42-46'."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise typer.BadParameter(f"seeds are written as 42, as 42,43 or as 42-46, not {text!r}.")
        found += range(int(low), int(high if dash else low) + 1)
    return tuple(found)
