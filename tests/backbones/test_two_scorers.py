"""The piecewise loss: the same number and the same gradients as over all scores at once, however it is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bridgemem.backbones import two_scorers
from bridgemem.backbones.cenet import nce_loss
from bridgemem.backbones.two_scorers import piecewise_loss
from precision import close

N, E, D = 11, 17, 5


def case(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Queries with none, one and several recurring candidates, in double precision."""
    draw = torch.Generator().manual_seed(4)
    query = torch.randn(2, N, D, dtype=torch.float64, generator=draw).mul_(scale).requires_grad_()
    entity = torch.randn(E, D, dtype=torch.float64, generator=draw).requires_grad_()
    recurring = torch.rand(N, E, generator=draw) < 0.2
    recurring[3] = False
    recurring[N - 1] = False
    row, candidate = recurring.nonzero(as_tuple=True)
    bias = torch.randn(2, len(row), dtype=torch.float64, generator=draw)
    first = torch.searchsorted(row, torch.arange(N), out_int32=True)
    return query, entity, row * E + candidate, bias, first, torch.randint(E, (N,), generator=draw)


def plain(query: Tensor, entity: Tensor, at: Tensor, bias: Tensor, answer: Tensor) -> Tensor:
    scores = query.flatten(0, 1) @ entity.T
    extra = torch.zeros(2, N * E, dtype=scores.dtype)
    for flat, own in zip(extra, bias, strict=True):
        flat[at] = own
    return nce_loss(scores + extra.view(2 * N, E), answer.repeat(2))


@pytest.mark.parametrize("cached", [1, 2 * E, 8 * E, 1 << 20])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_loss_and_gradients_equal_those_over_all_scores(
    cached: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_scorers, "CACHED", cached)
    query, entity, at, bias, first, answer = case(scale)
    expected = plain(query, entity, at, bias, answer)
    found = piecewise_loss(query, entity, at, bias, first, answer)
    assert close(found, expected)
    of_plain = torch.autograd.grad(3 * expected, (query, entity))
    of_pieces = torch.autograd.grad(3 * found, (query, entity))
    for one, other in zip(of_pieces, of_plain, strict=True):
        assert close(one, other)


def test_without_any_past_there_is_nothing_to_add() -> None:
    query, entity, at, bias, _, answer = case()
    found = piecewise_loss(query, entity, at[:0], bias[:, :0], torch.zeros(N, dtype=torch.int32), answer)
    assert close(found, plain(query, entity, at[:0], bias[:, :0], answer))
