"""Tensors in safetensors files: written with a checksum, read, and each held to the spec that declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from bridgemem.config import write_toml
from bridgemem.errors import RunError
from bridgemem.storage.checksums import BLOCK, checksum
from bridgemem.storage.files import read_config
from bridgemem.storage.known_files import refuse_links
from bridgemem.storage.placing import recover
from bridgemem.storage.whole import whole_folder

# the checksum of a file stands in its own header, where it counts as these digits: so it covers every other byte, and a
# file that is copied alone keeps it
NOTED, NONE = "crc32", "00000000"
MARK = f'"{NOTED}":"'.encode()
# what tensors are saved in; most operations are not made for others, such as complex numbers or floats of 8 bits
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


@dataclass(frozen=True)
class TensorSpec:
    """What a file holds under a name. dtype: None for floats of any size, which are finite.

    shape: sizes. One that is a name is whatever the tensor has there, and the same wherever the name stands.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        return f"{_name(self.dtype) if self.dtype else 'float'} [{', '.join(map(str, self.shape))}]"


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """The specs of the weights of a network, which may have been made on the meta device."""
    return {
        name: TensorSpec(tuple(own.shape), None if own.is_floating_point() else own.dtype)
        for name, own in tensors.items()
    }


def check_tensors(tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Refuse tensors that are not those of the specs with a ValueError; returns the sizes that have names."""
    sizes: dict[str, int] = {}
    for name, spec in specs.items():
        given = tensor_of(tensors, name, len(spec.shape))
        for size, found in zip(spec.shape, given.shape, strict=True):
            if found != (sizes.setdefault(size, found) if isinstance(size, str) else size):
                raise ValueError(f"{name} is {_name(given.dtype)} {list(given.shape)}, not {spec}")
        if not (given.is_floating_point() if spec.dtype is None else given.dtype == spec.dtype):
            raise ValueError(f"{name} is {_name(given.dtype)} {list(given.shape)}, not {spec}")
        if given.is_floating_point() and not torch.isfinite(given).all():
            raise ValueError(f"{name} holds a number that is NaN or infinite")
    if unknown := sorted(set(tensors) - set(specs)):
        raise ValueError(f"nothing is known of {unknown[0]}")
    return sizes


def tensor_of(tensors: Mapping[str, Tensor], name: str, dims: int) -> Tensor:
    """A tensor by its name, refused with a ValueError where it is not there or has another number of dimensions."""
    if name not in tensors:
        raise ValueError(f"{name} is missing")
    if tensors[name].dim() != dims:
        raise ValueError(f"{name} has {tensors[name].dim()} dimensions, not {dims}")
    return tensors[name]


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without the beginning."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, with a checksum of the file."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = memoryview(save(own, {NOTED: NONE}))
    at = bytes(content[: _header_end(content)]).index(MARK) + len(MARK)
    # as bytes through Python, so that a full disk is an OSError and the file has the user's usual permissions
    with path.open("wb") as file:
        for part in (content[:at], checksum(content).encode(), content[at + len(NONE) :]):
            file.write(part)


def _header_end(start: bytes | memoryview) -> int:
    return 8 + int.from_bytes(start[:8], "little")


def _verify(path: Path, remedy: str) -> None:
    """Refuse a file that is not the one that was written; one of an earlier version has no checksum."""
    with path.open("rb") as file:
        start = file.read(8)
        start += file.read(_header_end(start) - 8)
        at = start.find(MARK) + len(MARK)
        if at < len(MARK):
            return
        end = at + len(NONE)
        noted, found = start[at:end], checksum(start[:at] + NONE.encode() + start[end:])
        for block in iter(partial(file.read, BLOCK), b""):
            found = checksum(block, found)
    if noted != found.encode():
        raise RunError(f"{path} is damaged, its checksum is not the one noted when it was written; {remedy}.")


def read_tensors(
    path: Path, specs: Mapping[str, TensorSpec] | None = None, remedy: str = "put a copy back"
) -> dict[str, Tensor]:
    """The tensors of a file, refused where they are not those of the specs."""
    try:
        tensors = load_file(path)
        _verify(path, remedy)
    except FileNotFoundError:
        raise RunError(f"{path} is missing; restore it from a copy, or write the folder again.") from None
    # a KeyError where safetensors knows a type of numbers and torch does not
    except (SafetensorError, OSError, ValueError, LookupError, AttributeError, RuntimeError) as problem:
        raise RunError(f"{path} is damaged: {problem}.") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPES:
            raise RunError(f"{path} holds {name} as {_name(tensor.dtype)}, in which no weights are saved; {remedy}.")
    if specs is not None:
        try:
            check_tensors(tensors, specs)
        except ValueError as problem:
            raise RunError(f"{path}: {problem}; {remedy}.") from None
    return tensors


def save_tensors(folder: Path, config: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    """config.toml and weights.safetensors in a new folder."""
    with whole_folder(folder, replace=True) as aside:
        (aside / "config.toml").write_text(write_toml(config), encoding="utf-8")
        write_tensors(aside / "weights.safetensors", tensors)


def load_tensors(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    folder = Path(folder)
    recover(folder)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{folder} holds no saved model, config.toml is missing; `bridgemem train` writes one.")
    refuse_links(folder)
    return read_config(folder), read_tensors(folder / "weights.safetensors")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
