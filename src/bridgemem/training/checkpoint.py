"""Checkpoints: the seed, device and saved state of a long training, which resumes after a kill."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bridgemem.errors import RunError
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.tensors import check_tensors, load_tensors, save_tensors, specs_of

Net = TypeVar("Net", bound=nn.Module)

LAYOUT = 2  # of weights and state; another number makes checkpoints of before unusable
KEEP_EVERY = 20.0  # seconds of training that a kill may cost, besides the epoch it falls into


@contextmanager
def seeded(seed: int, device: str | torch.device) -> Iterator[None]:
    """Lend the global random numbers a seed: training draws from them, and they are given back as they were."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves normal numbers undrawn: for one on the meta device torch imports its compiler, a second of each start."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **(kwargs or {}))


@contextmanager
def shells() -> Iterator[None]:
    """Networks made inside hold nothing: none of their numbers is allocated or drawn."""
    with torch.device("meta"), _Undrawn():
        yield


def with_weights(net: Net, tensors: dict[str, Tensor]) -> Net:
    """A network made among `shells`, with saved weights in place of none."""
    # a tensor that is assigned keeps its type, and only floats of any size become float32
    check_tensors(tensors, specs_of(net.state_dict()))
    # cloned, since memory that maps a file is not aligned as torch aligns its own, which can move a last bit
    net.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    return net.float()


class OtherTrainingWarning(UserWarning):
    """What a folder keeps is of a training on other data or with other settings, and is replaced."""


class Checkpoint:
    """The state of a training in stages of epochs, in a folder that is whole or absent; without a folder, nothing.

    Opened on a network that was just made, it brings network and random numbers to where the last start came. The
    config says which training it is, in tables of plain values: only a state that was kept under the same is used.
    """

    def __init__(self, folder: Path | None, config: dict[str, dict[str, Any]], net: nn.Module) -> None:
        self.folder, self.config, self.net = folder, config, net
        self.device = next(net.parameters()).device
        self.stage, self.epochs = 1, 0
        self.moments: dict[int, dict[str, Tensor]] = {}
        self._restore()
        self.opened = self.written = time.monotonic()

    def _restore(self) -> None:
        """Take over what is kept, unless it is of another training or cannot be read."""
        if self.folder is None or not self.folder.is_dir():
            return
        try:
            config, tensors = load_tensors(self.folder)
        except RunError:
            return
        reached = config.pop("reached", None)
        if reached is None or config != self.config:
            warnings.warn(
                f"the checkpoint in {self.folder} is of other data or settings; it is replaced.",
                OtherTrainingWarning,
                stacklevel=2,
            )
            return
        self.stage, self.epochs = reached["stage"], reached["epochs"]
        weights = {}
        for name, tensor in tensors.items():
            match name.split("/"):
                case ["net", name_of_weight]:
                    weights[name_of_weight] = tensor
                case ["adam", number, moment]:
                    # cloned, since memory that maps a file is not aligned as torch aligns its own
                    self.moments.setdefault(int(number), {})[moment] = tensor.clone()
        self.net.load_state_dict(weights)
        torch.set_rng_state(tensors["random/cpu"].clone())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random/cuda"].clone(), self.device)

    def resume(self, stage: int, optimizer: torch.optim.Optimizer) -> int:
        """Bring the optimizer of a stage to where the stage was left; the epochs of it that are done."""
        if stage != self.stage or not self.moments:
            return 0
        optimizer.load_state_dict({"state": self.moments, "param_groups": optimizer.state_dict()["param_groups"]})
        self.moments = {}
        return self.epochs

    def keep(self, stage: int, epochs: int, optimizer: torch.optim.Optimizer, whole: bool) -> None:
        """Write the state after an epoch if the last is old enough; that of a whole stage is worth it sooner.

        A training that is over in a moment leaves nothing behind.
        """
        since = self.opened if whole else self.written
        if self.folder is None or time.monotonic() - since < KEEP_EVERY:
            return
        tensors = {f"net/{name}": tensor for name, tensor in self.net.state_dict().items()}
        for number, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{number}/{moment}": tensor for moment, tensor in moments.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        save_tensors(self.folder, {**self.config, "reached": {"stage": stage, "epochs": epochs}}, tensors)
        self.written = time.monotonic()


@dataclass(frozen=True)
class Training:
    """How a backbone is trained; checkpoint: the folder in which a long training keeps its state, if it does."""

    seed: int = 42
    device: str = "cpu"
    progress: Progress = SILENT
    checkpoint: Path | None = None

    def state(self, name: str, fingerprint: str, settings: Any, net: nn.Module, **more: Any) -> Checkpoint:
        """The checkpoint of a network; more: what else identifies this training of a backbone."""
        training = {
            "backbone": name,
            "layout": LAYOUT,
            "seed": self.seed,
            "fingerprint": fingerprint,
            "device": torch.device(self.device).type,
            **more,
        }
        # as it will be read again: a file of settings knows lists alone
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(settings).items()}
        return Checkpoint(self.checkpoint, {"training": training, "settings": values}, net)
