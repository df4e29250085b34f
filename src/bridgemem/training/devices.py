"""Devices: whether this machine has one, and its name in words."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from bridgemem.errors import SettingsError

Net = TypeVar("Net", bound=nn.Module)


def check_device(device: str) -> str:
    """The device, if this machine has it."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise SettingsError(f"there is no device called {device!r}; use cpu or cuda.")
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError("CUDA is not available; use --device cpu, or a CUDA build of torch.")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise SettingsError(
            f"there is no {device}; use one of the {torch.cuda.device_count()} CUDA devices, from cuda:0."
        )
    return device


def describe_device(device: str) -> str:
    """The device in words; starts with cpu or cuda."""
    if device.startswith("cuda"):
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"cpu {torch.get_num_threads()} threads"


def moved(net: Net, device: str | torch.device) -> Net:
    """A network on a device: a copy where it lies on another one, so that what holds it keeps it where it is."""
    there = next((t.device for t in (*net.parameters(), *net.buffers())), None)
    wanted = torch.empty(0, device=device).device
    return net if there in (None, wanted) else copy.deepcopy(net).to(device)
