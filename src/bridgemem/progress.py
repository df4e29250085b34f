"""How long work reports that it moves: a small protocol, silent by default, bars on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import rich.progress


class Step(Protocol):
    """Moves one task forward; ``note`` replaces the short text shown after its bar."""

    def __call__(self, advance: int = 1, /, *, note: str | None = None) -> None: ...


class Progress(Protocol):
    """What the numeric core knows about progress: named tasks, which may be nested."""

    def task(self, label: str, total: int | None = None) -> AbstractContextManager[Step]:
        """Open a task of ``total`` steps (None: not known beforehand) that ends with the ``with`` block."""
        ...


class SilentProgress:
    """Reports nothing: the default wherever nobody watches."""

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        """A task whose steps go nowhere."""
        yield _ignore


def _ignore(advance: int = 1, /, *, note: str | None = None) -> None:
    pass


SILENT: Progress = SilentProgress()


class RichProgress:
    """Draws every open task as one bar of a live display; a task's bar goes when the task ends."""

    def __init__(self, display: rich.progress.Progress) -> None:
        self._display = display

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        """A task drawn as a bar, or as a pulse where the total is not known."""
        bar = self._display.add_task(label, total=total, note="")

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            if note is None:
                self._display.update(bar, advance=advance)
            else:
                self._display.update(bar, advance=advance, note=note)

        try:
            yield step
        finally:
            self._display.remove_task(bar)


@contextmanager
def terminal_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """The progress of a whole command: bars on stderr where that is a terminal, else silence.

    Print results after the block: a bar that is still live would share their line.

    >>> with terminal_progress(quiet=True) as progress:
    ...     with progress.task("reader epoch", total=20) as step:
    ...         step(1, note="nll 2.31")
    """
    if quiet or not sys.stderr.isatty():
        yield SILENT
        return
    with _rich_display() as display:
        yield RichProgress(display)


def _rich_display() -> rich.progress.Progress:
    # Imported here so that the numeric core, and commands without a terminal, never load rich for this.
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.SpinnerColumn(),
        # Labels and notes may hold names from the data, with brackets in them: they are text, not markup.
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        # Results go to stdout, which may be a file: the display must not capture them.
        redirect_stdout=False,
    )
