"""Steps: the steps of a training that meets the same batches in every epoch, recorded once on a GPU and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Steps:
    """Takes optimizer steps, one batch at a time.

    A small network costs a GPU less than the host needs to launch it. A batch that comes a second time with all its
    inputs where they were is therefore recorded as one CUDA graph, and from then on launched as a whole: the same
    kernels on the same numbers in the same order. Elsewhere every step is taken the ordinary way.
    """

    def __init__(self, parameters: list[nn.Parameter], learning_rate: float, weight_decay: float, clip: float) -> None:
        device = parameters[0].device
        self.parameters, self.clip, self.on_gpu = parameters, clip, device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            parameters, lr=learning_rate, weight_decay=weight_decay, fused=True, capturable=self.on_gpu
        )
        self.met: set[int] = set()
        self.recorded: dict[int, torch.cuda.CUDAGraph] = {}
        if self.on_gpu:
            # recording needs a stream of its own, and gradients remember the stream they were first made on
            self.stream = torch.cuda.Stream(device)
            self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def running(self) -> Iterator[None]:
        """All steps are taken inside; whoever reads the parameters afterwards waits for the last of them."""
        if not self.on_gpu:
            yield
            return
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            yield
        here.wait_stream(self.stream)

    def take(self, batch: int, loss: Callable[[], Tensor], stays: bool) -> None:
        """One step on the batch of that number; it stays if its inputs lie where they lay at its last step."""
        if batch in self.recorded:
            self.recorded[batch].replay()
        elif self.on_gpu and stays and batch in self.met:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self._take(loss)
            self.recorded[batch] = graph
            graph.replay()
        else:
            self._take(loss)
            self.met.add(batch)

    def _take(self, loss: Callable[[], Tensor]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
