"""Tensors: each is held to the spec that declares its type, its shape and that it is finite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bridgemem.errors import RunError
from bridgemem.storage.tensors import TensorSpec, check_tensors, part_of, read_tensors, specs_of, write_tensors

SPECS = {
    "weight": TensorSpec(("rows", 2)),
    "bias": TensorSpec(("rows",)),
    "ids": TensorSpec((3,), torch.int64),
}
WHOLE = {"weight": torch.ones(4, 2), "bias": torch.zeros(4, dtype=torch.float64), "ids": torch.arange(3)}


def test_tensors_that_fit_give_the_sizes_that_have_names() -> None:
    assert check_tensors(WHOLE, SPECS) == {"rows": 4}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"weight": torch.ones(4, 3)}, r"weight is float32 \[4, 3\], not float \[rows, 2\]"),
        ({"bias": torch.ones(5)}, r"bias is float32 \[5\], not float \[rows\]"),
        ({"weight": torch.ones(4)}, "weight has 1 dimensions, not 2"),
        ({"weight": torch.ones(4, 2).long()}, r"weight is int64 \[4, 2\], not float \[rows, 2\]"),
        ({"ids": torch.ones(3)}, r"ids is float32 \[3\], not int64 \[3\]"),
        ({"bias": torch.tensor([0.0, 1.0, torch.nan, 0.0])}, "bias holds a number that is NaN or infinite"),
        ({"other": torch.ones(1)}, "nothing is known of other"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(wrong: dict[str, Tensor], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_tensors({**WHOLE, **wrong}, SPECS)
    path = tmp_path / "t.safetensors"
    write_tensors(path, {**WHOLE, **wrong})
    with pytest.raises(RunError, match=rf"t\.safetensors: {sentence}; write it anew\."):
        read_tensors(path, SPECS, "write it anew")


def test_a_tensor_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="ids is missing"):
        check_tensors({name: t for name, t in WHOLE.items() if name != "ids"}, SPECS)


def test_a_network_declares_its_own_weights() -> None:
    net = nn.BatchNorm1d(3)
    with torch.device("meta"):
        shell = nn.BatchNorm1d(3)
    assert check_tensors(net.state_dict(), specs_of(shell.state_dict())) == {}


def test_a_part_of_a_model_is_known_by_how_its_names_begin() -> None:
    assert list(part_of({"train.a": torch.ones(1), "known.a": torch.ones(1)}, "train.")) == ["a"]


def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, WHOLE)
    whole, refused = path.read_bytes(), 0
    for at in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[at] ^= 1 << at % 8
        path.write_bytes(spoiled)
        try:
            found = read_tensors(path, remedy="write it anew")
        except RunError:
            refused += 1
        else:
            assert found.keys() == WHOLE.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in WHOLE.items())
    assert refused >= len(whole) - 2 * len("__metadata__crc32")  # without this name the file is one without a checksum


def test_a_file_without_a_checksum_is_read(tmp_path: Path) -> None:
    save_file(WHOLE, tmp_path / "t.safetensors")
    assert torch.equal(read_tensors(tmp_path / "t.safetensors", SPECS)["ids"], WHOLE["ids"])
