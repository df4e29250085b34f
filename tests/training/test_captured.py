"""Steps: the same as plain optimizer steps, however they are launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bridgemem.training.captured import WARM, DecoupledSteps, Steps, tf32_matmul
from precision import close

BATCHES, EPOCHS = WARM + 2, 4
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="recording a step needs a CUDA device")
    ),
]


def regression(device: str) -> tuple[nn.Linear, list[Callable[[], Tensor]]]:
    """A small network and its loss on each of a few batches that stay where they are."""
    draw = torch.Generator().manual_seed(1)
    net = nn.Linear(4, 1)
    with torch.no_grad():
        net.weight.copy_(torch.randn(1, 4, generator=draw))
        net.bias.zero_()
    net = net.to(device)
    inputs = [torch.randn(8, 4, generator=draw).to(device) for _ in range(BATCHES)]

    def loss_of(x: Tensor) -> Callable[[], Tensor]:
        return lambda: (net(x) - x.sum(1, keepdim=True)).square().mean()

    return net, [loss_of(x) for x in inputs]


def plain(device: str) -> nn.Linear:
    net, losses = regression(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, weight_decay=0.01)
    for loss in losses * EPOCHS:
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return net


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("stays", "ready"), [(True, False), (True, True), (False, False)])
def test_steps_are_those_of_a_plain_loop_with_clipping_and_decay(device: str, stays: bool, ready: bool) -> None:
    net, losses = regression(device)
    steps = Steps(list(net.parameters()), learning_rate=0.1, weight_decay=0.01, clip=0.5)
    with steps.running():
        for _ in range(EPOCHS):
            for number, loss in enumerate(losses):
                steps.take(number, loss, stays, ready)
    expected = plain(device)
    assert close(net.weight, expected.weight)
    assert close(net.bias, expected.bias)
    assert len(steps.recorded) == (BATCHES if device == "cuda" and stays else 0)


def test_a_batch_whose_inputs_move_is_read_anew_at_every_step() -> None:
    net, losses = regression("cpu")
    asked = []

    def loss() -> Tensor:
        asked.append(len(asked))
        return losses[0]()

    steps = Steps(list(net.parameters()), learning_rate=0.1, weight_decay=0.0, clip=1.0)
    for _ in range(3):
        steps.take(0, loss, stays=False)
    assert len(asked) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_decoupled_steps_are_those_of_the_library(device: str) -> None:
    draw = torch.Generator().manual_seed(1)
    start = [torch.randn(4, 3, generator=draw), torch.randn(4, generator=draw)]
    x, y = torch.randn(16, 3, generator=draw).to(device), torch.randn(16, 4, generator=draw).to(device)
    nets = [nn.Linear(3, 4).to(device) for _ in range(2)]
    for net in nets:
        with torch.no_grad():
            for p, value in zip(net.parameters(), start, strict=True):
                p.copy_(value)
    steps = DecoupledSteps(list(nets[0].parameters()), 0.05, 0.1)
    library = torch.optim.AdamW(nets[1].parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(30):
        with steps.running():
            steps.take(0, lambda: (nets[0](x) - y).square().mean(), stays=True)
        library.zero_grad()
        (nets[1](x) - y).square().mean().backward()
        library.step()
    assert len(steps.recorded) == (device == "cuda")
    for found, expected in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert close(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_tf32_matmul_are_a_gpus_alone_and_end_with_the_training(device: str) -> None:
    before = torch.get_float32_matmul_precision()
    with tf32_matmul(torch.device(device)):
        assert torch.get_float32_matmul_precision() == ("high" if device == "cuda" else before)
    assert torch.get_float32_matmul_precision() == before
