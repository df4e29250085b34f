"""Captured steps: optimizer steps as CUDA graphs, recorded once and replayed where their inputs stay in place."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from bridgemem.storage.allocator import freed_is_kept

# Adam's own defaults
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
WARM = 3  # plain steps before the first recording: libraries set themselves up in their first calls


@contextmanager
def tf32_matmul(device: torch.device) -> Iterator[None]:
    """Inside, a GPU multiplies matrices with ten bits of each factor and adds up in full: enough to train by."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _CapturedStep(ABC):
    """Takes optimizer steps, one batch at a time.

    A small network costs a GPU less than the host needs to launch it. A batch whose inputs stay in place is therefore
    recorded as one CUDA graph when it comes a second time, or at once if all its inputs lie ready, and from then on
    launched as a whole: the same kernels on the same numbers in the same order. Elsewhere every step is taken the
    ordinary way.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        device = parameters[0].device
        self.parameters, self.on_gpu = parameters, device.type == "cuda"
        self.seen: set[int] = set()
        self.recorded: dict[int, torch.cuda.CUDAGraph] = {}
        if self.on_gpu:
            # recording needs a stream of its own, and gradients remember the stream they were first made on
            self.stream = torch.cuda.Stream(device)
            self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def running(self) -> Iterator[None]:
        """All steps are taken inside; a reader of the parameters afterwards waits for the last of them."""
        if not self.on_gpu:
            yield
            return
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:  # also where a training is cut off: its memory may be given away before its steps are over
            here.wait_stream(self.stream)

    def take(self, batch: int, loss: Callable[[], Tensor], stays: bool, ready: bool = False) -> None:
        """One step on the batch of that number; it stays if its inputs will lie where they lie at every step.

        ready: whatever the loss makes at its first use and keeps, it has made.
        """
        if batch in self.recorded:
            self.recorded[batch].replay()
        elif self.on_gpu and stays and (batch in self.seen or (ready and len(self.seen) >= WARM)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self._take(loss)
            self.recorded[batch] = graph
            graph.replay()
        else:
            self._take(loss)
            self.seen.add(batch)

    @abstractmethod
    def _take(self, loss: Callable[[], Tensor]) -> None:
        """One step, every operation of it on the device."""


class Steps(_CapturedStep):
    """Steps of Adam on clipped gradients."""

    def __init__(self, parameters: list[nn.Parameter], learning_rate: float, weight_decay: float, clip: float) -> None:
        super().__init__(parameters)
        self.clip = clip
        self.optimizer = torch.optim.Adam(
            parameters, lr=learning_rate, weight_decay=weight_decay, fused=True, capturable=self.on_gpu
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        with super().running(), nullcontext() if self.on_gpu else freed_is_kept():
            yield

    def _take(self, loss: Callable[[], Tensor]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()


class DecoupledSteps(_CapturedStep):
    """Steps of AdamW on parameters that lie in one vector, of which they become views.

    The same steps as torch.optim.AdamW, whose first use in a process loads a compiler for longer than a small network
    takes to train; and a handful of operations, however many parameters there are.
    """

    def __init__(
        self, parameters: list[nn.Parameter], learning_rate: float, weight_decay: float = 0.01, clip: float = math.inf
    ) -> None:
        """clip: the largest norm of a gradient; longer ones are cut down to it."""
        super().__init__(parameters)
        self.learning_rate, self.weight_decay, self.clip = learning_rate, weight_decay, clip
        self.vector = torch.cat([p.detach().flatten() for p in parameters])
        for parameter, part in zip(parameters, self.vector.split([p.numel() for p in parameters]), strict=True):
            parameter.data = part.view_as(parameter)
        self.mean, self.square = torch.zeros_like(self.vector), torch.zeros_like(self.vector)
        # on the device, so that a recorded step counts itself; in double precision, as 1 - .999^t needs it
        self.taken = torch.zeros((), dtype=torch.float64, device=self.vector.device)

    def _take(self, loss: Callable[[], Tensor]) -> None:
        gradients = torch.autograd.grad(loss(), self.parameters)
        with torch.no_grad():
            self._move(torch.cat([g.flatten() for g in gradients]))

    def _move(self, gradient: Tensor) -> None:
        self.taken += 1
        if self.clip < math.inf:
            gradient *= (self.clip / (gradient.norm() + 1e-6)).clamp_(max=1.0)
        self.vector *= 1 - self.learning_rate * self.weight_decay
        self.mean.lerp_(gradient, 1 - _BETAS[0])
        self.square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        # both moments start from zero; what makes up for it is one factor, and one for epsilon
        late = (1 - _BETAS[1] ** self.taken).sqrt()
        size = self.learning_rate * late / (1 - _BETAS[0] ** self.taken)
        self.vector -= self.mean / (self.square.sqrt() + _EPSILON * late) * size
