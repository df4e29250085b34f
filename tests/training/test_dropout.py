"""Dropout leaves out its share, keeps the mean, follows torch's seed, and does nothing outside of training."""

from __future__ import annotations

import torch

from bridgemem.training.dropout import Dropout


def drawn(seed: int, share: float = 0.1) -> torch.Tensor:
    torch.manual_seed(seed)
    return Dropout(share)(torch.ones(1000, 33))


def test_a_share_is_left_out_and_the_mean_stays() -> None:
    found = drawn(1)
    assert abs(float((found == 0).float().mean()) - 0.1) < 0.01  # 33,000 values: six standard deviations
    assert abs(float(found.mean()) - 1) < 0.01
    assert len(found.unique()) == 2


def test_it_follows_the_seed_of_torch() -> None:
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_every_value_of_an_odd_shape_is_left_out_now_and_then() -> None:
    torch.manual_seed(0)
    layer = Dropout(0.5)
    left_out = sum((layer(torch.ones(3, 5)) == 0).int() for _ in range(40))
    assert int(left_out.min()) > 0


def test_nothing_is_left_out_outside_of_training() -> None:
    x = torch.ones(4, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_gradients_pass_where_values_do() -> None:
    x = torch.ones(100, 3, requires_grad=True)
    found = Dropout(0.3)(x)
    found.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, found.detach())
