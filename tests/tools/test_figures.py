"""Figures: the bars are the gains of the records, and the files are the same as long as the gains are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tools.figures import draw_gains, gains_figure

from bridgemem.errors import BridgeMemError, DataError
from bridgemem.ranking.metrics import METRICS
from measurements import backbone, campaign, change, part, reseeded, residual


def test_a_bar_is_the_mean_gain_over_the_seeds_of_the_residual() -> None:
    made = [residual(seed=42 + i, gain={m: [g, g - 0.02, g + 0.03] for m in METRICS}) for i, g in enumerate((0.1, 0.3))]
    ((name, gains),) = gains_figure(made, "time")
    assert name == "icews14"
    assert list(gains) == list(METRICS)
    for bounds in gains.values():
        assert bounds == pytest.approx([0.2, 0.18, 0.23])


def test_only_whole_splits_of_one_backbone_and_its_own_choice_are_drawn() -> None:
    loud = {m: [0.9, 0.9, 0.9] for m in METRICS}
    made = [residual(), backbone(), part("support: 0", 9, 0.9), change("k=1", 0.9, gain=loud)]
    made += [residual(selected_by="static", gain=loud), residual(filter="static", gain=loud)]
    made += [residual(history="frozen", gain=loud), reseeded(residual(gain=loud), 43)]
    made += [residual(backbone="recurrence", gain=loud), residual(device="cpu", gain=loud)]
    assert gains_figure(made, "time") == gains_figure([residual()], "time")


def test_data_sets_stand_in_order_and_validation_is_named() -> None:
    made = [residual(dataset="wiki"), residual(dataset="gdelt", split="valid"), residual()]
    assert [name for name, _ in gains_figure(made, "time")] == ["gdelt (valid)", "icews14", "wiki"]


def test_a_record_without_gains_is_not_drawn() -> None:
    assert gains_figure([residual(gain={}), residual(dataset="wiki", gain={"mrr": [0, 0, 0]})], "time") == []


def test_the_chart_is_drawn_twice_alike_and_changes_with_the_gains(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    made = campaign()
    first = draw_gains(made, "time", tmp_path / "sub" / "one")
    assert [path.name for path in first] == ["one.svg", "one.png"]
    again = draw_gains(made, "time", tmp_path / "two")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    svg = first[0].read_text()
    assert svg.startswith("<?xml")
    assert first[1].read_bytes().startswith(b"\x89PNG")
    moved = [replace(r, gain={m: [g / 2 for g in v] for m, v in r.gain.items()}) for r in made]
    assert draw_gains(moved, "time", tmp_path / "three")[0].read_text() != svg


def test_nothing_to_draw_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cenet under the static filter.*nothing to draw"):
        draw_gains([residual()], "static", tmp_path / "gains")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BridgeMemError, match="extra 'plots'"):
        draw_gains([residual()], "time", tmp_path / "gains")
