"""How long work reports that it moves: a small protocol, silent by default, bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

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
    """Reports nothing; the default."""

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        """A task whose steps go nowhere."""
        yield _ignore


def remark(progress: Progress, text: str) -> None:
    """Say one line at once, above the tasks; a progress that knows tasks alone, as the silent one, says nothing."""
    say = getattr(progress, "remark", None)
    if say is not None:
        say(text)


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

    def remark(self, text: str) -> None:
        """A line above the bars, which stays."""
        self._display.console.print(text, markup=False, highlight=False)


class LineProgress:
    """Writes a line now and then while a task runs, with an estimate of the seconds left; short tasks write none."""

    def __init__(self, out: TextIO, every: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._every, self._clock = out, every, clock
        self._last = clock()

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        """A task that says how far it is."""
        began, done, said = self._clock(), 0, ""

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done, said
            done, said = done + advance, said if note is None else note
            now = self._clock()
            if now - self._last >= self._every:
                self._last = now
                self._out.write(_line(label, done, total, now - began, said))
                self._out.flush()

        yield step

    def remark(self, text: str) -> None:
        """A line at once."""
        self._out.write(f"{text}\n")
        self._out.flush()


def _line(label: str, done: int, total: int | None, seconds: float, note: str) -> str:
    if not total or done > total:
        text = f"{label}: {done:,} done in {seconds:.0f} s"
    else:
        left = f", about {seconds * (total - done) / done:.0f} s left" if done else ""
        text = f"{label}: {done:,} of {total:,} in {seconds:.0f} s{left}"
    return f"{text} ({note})\n" if note else f"{text}\n"


@contextmanager
def terminal_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """The progress of a whole command: bars on stderr where that is a terminal, else a line every ten seconds.

    Print results after the block: a bar that is still live would share their line.

    >>> with terminal_progress(quiet=True) as progress:
    ...     with progress.task("reader epoch", total=20) as step:
    ...         step(1, note="nll 2.31")
    """
    if quiet:
        yield SILENT
        return
    if not sys.stderr.isatty():
        yield LineProgress(sys.stderr)
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
