"""Run folders and backbones made to harm, or merely spoiled: refused early, and nothing in them is executed."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bridgemem.errors import BridgeMemError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.residuals.selection import Selection
from bridgemem.runs import Run
from commands import TINY_READER, bridgemem, planted_rows, write_rows

pytest_plugins = ("small_runs",)


class Bomb:
    """Pickled, it makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def refused(run: Path) -> None:
    """Neither Python nor the command line takes the run, and no figure is written."""
    (run / "metrics.json").unlink(missing_ok=True)
    with pytest.raises(BridgeMemError):
        evaluate(Run(run))
    bridgemem("evaluate", run).refused()
    assert not (run / "metrics.json").exists()


def refused_for_forecasts(run: Path) -> None:
    with pytest.raises(BridgeMemError):
        Run(run).predictor().forecast("Kel", "visit")
    bridgemem("forecast", run, "--subject", "Kel", "--relation", "visit").refused()


def change_config(run: Path, old: str, new: str) -> None:
    path = run / "config.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_the_run_is_taken_before_it_is_spoiled(run_copy: Path) -> None:
    assert evaluate(Run(run_copy))
    assert Run(run_copy).predictor().forecast("Kel", "visit")


# ---- config.toml ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run = 3\n",
        "run = [1, 2]\n",
        "[run]\nformat = 1\n",
        "[run]\nformat = '1'\n",
        "[settings]\nk = 8\n",
        "[run\n",
        "\x00\x01",
        "a = " + "[" * 50_000,
        "[run]\nformat = 1\nsettings = 3\n",
    ],
    ids=["empty", "number", "list", "no fields", "text", "no run", "cut", "binary", "deep", "nested"],
)
def test_a_config_that_describes_no_run_is_refused(text: str, run_copy: Path) -> None:
    (run_copy / "config.toml").write_text(text)
    refused(run_copy)
    refused_for_forecasts(run_copy)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 42", 'seed = "many"'),
        ("seed = 42", "seed = [42]"),
        ("seed = 42", "sead = 42"),
        ('history = "rolling"', 'history = "sideways"'),
        ('history = "rolling"', "history = 1"),
        ("k = 8", "k = -8"),
        ("k = 8", "k = true"),
        ("k = 8", 'k = "__import__"'),
        ("bins = [1, 4, 16, 64]", "bins = 4"),
        ("bins = [1, 4, 16, 64]", "bins = [4, 1]"),
        ("window = 65", "window = -1"),
        ('pooling = "sum"', 'pooling = "os.system"'),
        ("smoothing = 10.0", "smoothing = -1.0"),
        ("smoothing = 10.0", "smoothing = nan"),
        ("width = 8", "width = 1000000000"),
        ("hidden = 8", "hidden = 8192"),
        ("bins = [1, 4, 16, 64]", f"bins = {list(range(1, 100_000))}"),
    ],
)
def test_wrong_types_and_values_in_the_config_are_refused(old: str, new: str, run_copy: Path) -> None:
    change_config(run_copy, old, new)
    refused(run_copy)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "world", "icews14/../own", ""])
def test_a_path_in_place_of_a_data_set_is_not_followed(name: str, run_copy: Path) -> None:
    (run_copy / "data.npz").unlink()
    change_config(run_copy, 'dataset = "own"', f'dataset = "{name}"')
    refused(run_copy)


@pytest.mark.parametrize("old_new", [("k = 8", "k = 4"), ("window = 65", "window = 7"), ("width = 8", "width = 16")])
def test_settings_that_do_not_fit_the_weights_are_refused_or_harmless(old_new: tuple[str, str], run_copy: Path) -> None:
    change_config(run_copy, *old_new)
    if old_new[0].startswith("width"):
        refused(run_copy)
    else:
        assert evaluate(Run(run_copy))


# ---- weights -------------------------------------------------------------------------------------------------------

WEIGHTS = ("model.safetensors", "backbone/weights.safetensors")


@pytest.mark.parametrize("file", WEIGHTS)
def test_a_pickle_in_place_of_weights_is_not_loaded(file: str, run_copy: Path, tmp_path: Path) -> None:
    (run_copy / file).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    refused(run_copy)
    torch.save({"w": Bomb(tmp_path / "exploded")}, run_copy / file)
    refused(run_copy)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("file", WEIGHTS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: struct.pack("<Q", 2**63) + data[8:],
        lambda data: struct.pack("<Q", 2**30) + data[8:],
        lambda data: data[:8] + b"[" * 50 + data[58:],
        lambda data: data.replace(b"data_offsets", b"data_offsetz"),
        lambda data: data.replace(b'"F32"', b'"F64"'),
    ],
    ids=["empty", "7 bytes", "half", "one byte less", "one byte more", "huge", "large", "no json", "field", "dtype"],
)
def test_weights_that_are_cut_or_lie_about_themselves_are_refused(
    spoil: Callable[[bytes], bytes], file: str, run_copy: Path
) -> None:
    path = run_copy / file
    data = path.read_bytes()
    assert spoil(data) != data
    path.unlink()
    path.write_bytes(spoil(data))
    refused(run_copy)


@pytest.mark.parametrize("file", WEIGHTS)
def test_weights_that_lead_nowhere_are_refused(file: str, run_copy: Path, tmp_path: Path) -> None:
    path = run_copy / file
    path.unlink()
    refused(run_copy)
    path.symlink_to(tmp_path / "nowhere")
    refused(run_copy)
    path.unlink()
    path.symlink_to(path)
    refused(run_copy)
    path.unlink()
    path.mkdir()
    refused(run_copy)


@pytest.mark.parametrize("name", ["known.counts", "known.log_prior", "known.reader.attention.weight"])
@pytest.mark.parametrize("how", ["missing", "shorter", "scalar", "not finite", "renamed"])
def test_tensors_of_the_residual_that_do_not_fit_are_refused(name: str, how: str, run_copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensor = tensors.pop(name)
        if how == "shorter":
            tensors[name] = tensor.flatten()[:-2].contiguous()
        elif how == "scalar":
            tensors[name] = torch.tensor(1.0)
        elif how == "not finite":
            tensors[name] = torch.full(tensor.shape, torch.nan, dtype=torch.float64)
        elif how == "renamed":
            tensors[f"{name}.x"] = tensor

    change_weights(run_copy / "model.safetensors", change)
    refused(run_copy)
    refused_for_forecasts(run_copy)


@pytest.mark.parametrize("how", ["missing", "shorter", "transposed", "not finite", "extra"])
def test_tensors_of_the_backbone_that_do_not_fit_are_refused(how: str, run_copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        entity = tensors.pop("entity")
        if how == "shorter":
            tensors["entity"] = entity[:-3].contiguous()
        elif how == "transposed":
            tensors["entity"] = entity.T.contiguous()
        elif how == "not finite":
            tensors["entity"] = torch.full_like(entity, torch.nan)
        elif how == "extra":
            tensors |= {"entity": entity, "payload": torch.zeros(4)}

    change_weights(run_copy / "backbone" / "weights.safetensors", change)
    refused(run_copy)


# ---- the backbone's own folder -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "backbone = 3\n",
        "[backbone]\nname = 3\n",
        "[backbone]\nname = ['cenet']\n",
        "[backbone]\nname = 'os.system'\n",
        "[backbone]\nname = '../cenet'\n",
        "[backbone]\nname = 'bridgemem.studies.demo'\n",
        "[backbone]\nname = 'cenet'\nsettings = 4\n",
        "[backbone]\nname = 'cenet'\n[settings]\nwidth = 'x'\n",
        "[backbone]\nname = 'cenet'\n[settings]\nwidth = 16\n",
        "[backbone]\nname = 'cenet'\n[settings]\nhook = 'x'\n",
        "[backbone]\nname = 'recurrence'\n[settings]\nhook = 'x'\n",
    ],
)
def test_a_backbone_whose_config_lies_is_refused(text: str, run_copy: Path, own_csv: Path, tmp_path: Path) -> None:
    (run_copy / "backbone" / "config.toml").unlink()
    (run_copy / "backbone" / "config.toml").write_text(text)
    refused(run_copy)
    fitted = bridgemem("fit", "-d", own_csv, "-b", run_copy / "backbone", "-o", tmp_path / "new", *TINY_READER)
    fitted.refused()
    assert not (tmp_path / "new").exists()


def test_a_run_without_its_backbone_is_refused(run_copy: Path) -> None:
    (run_copy / "backbone").rename(run_copy / "elsewhere")
    refused(run_copy)


# ---- selection.json, data.npz --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "null", '"time"', '{"time": []}', '{"time": {}, "static": {}}', "{" * 9, "[" * 100_000],
)
def test_a_selection_that_is_none_keeps_test_closed(text: str, run_copy: Path) -> None:
    (run_copy / "selection.json").write_text(text)
    refused(run_copy)
    refused_for_forecasts(run_copy)


@pytest.mark.parametrize(
    "choice",
    [
        {"lam": "1.0"},
        {"lam": None},
        {"lam": -1.0},
        {"lam": float("nan")},
        {"lam": float("inf")},
        {"tau": -1.0},
        {"tau": [1]},
        {"gate": "open"},
        {"gate": 3},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_refused_even_under_a_fresh_lock(choice: dict[str, object], run_copy: Path) -> None:
    path = run_copy / "selection.json"
    records = json.loads(path.read_text())
    for record in records.values():
        record["choice"] |= choice
        del record["lock"]
        try:
            record["lock"] = Selection.from_dict(record).lock()
        except BridgeMemError:
            record["lock"] = "0" * 16
    path.write_text(json.dumps(records))
    refused(run_copy)


def test_data_made_to_harm_is_refused(run_copy: Path, tmp_path: Path) -> None:
    import numpy as np

    np.savez(run_copy / "data.npz", about=np.array([Bomb(tmp_path / "exploded")], dtype=object))
    refused(run_copy)
    (run_copy / "data.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    refused(run_copy)
    assert not (tmp_path / "exploded").exists()


def test_names_with_paths_and_markup_in_them_stay_names(tmp_path: Path) -> None:
    odd = {"Kel": "../../etc/passwd", "Lor": "[bold]\x1b[31m$(reboot)", "Arvan": "Ärvan\u202e"}
    rows = [(odd.get(a, a), r, odd.get(b, b), t) for a, r, b, t in planted_rows()]
    data = write_rows(tmp_path / "odd.csv", rows)
    assert bridgemem("fit", "-d", data, "-b", "recurrence", "-o", tmp_path / "run", *TINY_READER).code == 0
    asked = (tmp_path / "run", "--subject", odd["Kel"], "--relation", "visit", "--json")
    assert set(odd.values()) <= {
        candidate["name"] for candidate in bridgemem("forecast", *asked, "--top", "12").json["candidates"]
    }
    assert bridgemem("explain", *asked, "--object", odd["Lor"]).json["explanations"][0]["object"] == odd["Lor"]
