"""Progress: silent where nobody watches, bars on a terminal, lines elsewhere, never in the way of results."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.progress import Progress as RichDisplay

from bridgemem.progress import SILENT, LineProgress, RichProgress, remark, terminal_progress


class TerminalStream(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def display() -> Iterator[RichDisplay]:
    with RichDisplay(console=Console(file=io.StringIO(), force_terminal=True), auto_refresh=False) as display:
        yield display


def terminal_on_stderr(monkeypatch: pytest.MonkeyPatch) -> TerminalStream:
    """Put a terminal on stderr. Not a fixture: pytest sets stderr anew between a fixture and its test."""
    stream = TerminalStream()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("TTY_INTERACTIVE", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    return stream


def drawn(terminal: TerminalStream, expected: str) -> str:
    """What the terminal shows once the display, which draws from its own thread, has drawn ``expected``."""
    for _ in range(500):
        if expected in terminal.getvalue():
            return terminal.getvalue()
        time.sleep(0.01)
    pytest.fail(f"{expected!r} was never drawn in {terminal.getvalue()!r}")


def test_silence_takes_every_call_that_a_bar_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with SILENT.task("epochs", total=2) as outer, SILENT.task("batches") as inner:
        inner(3)
        outer(1, note="nll 2.31")
        outer()
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_progress() as progress, progress.task("epochs", total=2) as step:
        step(1)
    assert isinstance(progress, LineProgress)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_long_work_writes_a_line_now_and_then() -> None:
    now, out = [0.0], io.StringIO()
    progress = LineProgress(out, every=10.0, clock=lambda: now[0])
    with progress.task("epochs", total=1000) as step, progress.task("mining") as other:
        for _ in range(4):
            now[0] += 4.0
            step(100, note="nll 2.31")
        now[0] += 12.0
        other(5)
        step(100)
    assert out.getvalue().splitlines() == [
        "epochs: 300 of 1,000 in 12 s, about 28 s left (nll 2.31)",
        "mining: 5 done in 28 s",
    ]


def test_quiet_wins_over_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_on_stderr(monkeypatch)
    with terminal_progress(quiet=True) as progress, progress.task("epochs", total=2) as step:
        step(1)
    assert terminal.getvalue() == ""


def test_on_a_terminal_labels_notes_and_counts_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_on_stderr(monkeypatch)
    with terminal_progress() as progress, progress.task("reader [bold]", total=7) as step:
        step(3, note="nll [2.31]")
        shown = drawn(terminal, "3/7")
    assert "reader [bold]" in shown
    assert "nll [2.31]" in shown


def test_results_printed_under_a_live_bar_still_reach_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = terminal_on_stderr(monkeypatch)
    with terminal_progress() as progress, progress.task("epochs", total=7):
        drawn(terminal, "0/7")
        sys.stdout.write("a result\n")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.getvalue()


def test_a_remark_is_a_line_at_once_and_stays_above_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    remark(LineProgress(out), "the grid has [4] settings")
    remark(SILENT, "nothing")
    assert out.getvalue() == "the grid has [4] settings\n"
    terminal = terminal_on_stderr(monkeypatch)
    with terminal_progress() as progress, progress.task("tuning", total=7):
        remark(progress, "the grid has [4] settings")
        drawn(terminal, "the grid has [4] settings")


def test_steps_add_up_and_the_last_note_stays(display: RichDisplay) -> None:
    with RichProgress(display).task("epochs", total=5) as step:
        step(2, note="first")
        step()
        (bar,) = display.tasks
        assert (bar.completed, bar.total, bar.fields["note"]) == (3, 5, "first")


def test_nested_tasks_move_on_their_own_and_leave_when_they_end(display: RichDisplay) -> None:
    progress = RichProgress(display)
    with progress.task("epochs", total=2) as outer:
        with progress.task("batches", total=9) as inner:
            inner(4)
            outer(1)
            assert [(bar.description, bar.completed) for bar in display.tasks] == [("epochs", 1), ("batches", 4)]
        assert [bar.description for bar in display.tasks] == ["epochs"]
    assert display.tasks == []


def test_a_failing_task_takes_its_bar_away(display: RichDisplay) -> None:
    with pytest.raises(ValueError, match="broken"), RichProgress(display).task("epochs"):
        raise ValueError("broken")
    assert display.tasks == []


def test_the_core_can_report_without_loading_rich() -> None:
    code = "import sys, bridgemem.progress as p; p.SILENT.task('x'); sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
