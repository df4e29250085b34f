"""The numerics policy on this processor: which operations keep their bits, and what cutting out candidates gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bridgemem.evidence.gate import relative_entropy, seen_mass
from bridgemem.numerics import by_candidates, row_sums, sigmoid
from precision import FLOAT64, close, same

ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "exp": lambda x: torch.exp(-x),
    "expm1": lambda x: torch.expm1(-x),
    "log": torch.log,
    "log1p": torch.log1p,
    "division": lambda x: 1 / x,
    "sigmoid": sigmoid,
}
SIZES = (*range(1, 40), 64, 257, 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_element_has_the_same_bits_wherever_it_stands(name: str, dtype: torch.dtype) -> None:
    x, function = (
        torch.rand(2000, dtype=dtype, generator=torch.Generator().manual_seed(1)) * 20 + 1e-3,
        ELEMENTWISE[name],
    )
    whole = function(x)
    for begin in (0, 1, 3):
        for size in SIZES:
            assert same(function(x[begin : begin + size].clone()), whole[begin : begin + size])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [13, 54, 300, 40_000])
def test_a_row_has_the_same_bits_whatever_rows_stand_next_to_it(width: int, dtype: torch.dtype) -> None:
    x = torch.randn((5, width), dtype=dtype, generator=torch.Generator().manual_seed(2)) * 3
    for function in (row_sums, lambda a: a.softmax(1), lambda a: a.log_softmax(1), relative_entropy):
        whole = function(x)
        assert same(torch.cat([function(x[i : i + 1].clone()) for i in range(5)]), whole)


def scattered(x: Tensor, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """The columns of x among others that are no candidates, in the same order; and where they stand."""
    place = torch.randperm(width, generator=torch.Generator().manual_seed(seed))[: x.shape[1]].sort().values
    wide = x.new_full((len(x), width), -torch.inf)
    wide[:, place] = x
    return wide, place


@pytest.mark.parametrize("width", [15, 16, 17, 54, 200])
def test_names_that_are_no_candidates_change_no_bit_of_a_row(width: int) -> None:
    x = torch.randn((4, 13), generator=torch.Generator().manual_seed(3)) * 3
    wide, place = scattered(x, width, 4)
    assert same(by_candidates(lambda a: a.log_softmax(1), wide, -torch.inf)[:, place], x.log_softmax(1))
    assert same(relative_entropy(wide), relative_entropy(x))
    row, candidate = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 5, 12, 0])
    assert same(seen_mass(wide, row, place[candidate]), seen_mass(x, row, candidate))


def test_rows_with_other_candidates_are_each_computed_on_their_own() -> None:
    score = torch.tensor(
        [[1.0, -torch.inf, 2.0], [1.0, 2.0, -torch.inf], [-torch.inf, 2.0, -torch.inf], [0.0, 1.0, 2.0]]
    )
    found = by_candidates(lambda a: a.softmax(1), score)
    assert close(found.sum(1), torch.ones(4))
    assert ((found > 0) == (score > -torch.inf)).all()
    assert same(found[2], torch.tensor([0.0, 1.0, 0.0]))
    assert same(found[0, [0, 2]], torch.tensor([[1.0, 2.0]]).softmax(1)[0])


def test_the_entropy_of_few_candidates_is_a_share_of_what_they_can_have() -> None:
    even = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf], [0.0, -torch.inf, -torch.inf, -torch.inf]])
    assert close(relative_entropy(even), torch.tensor([1.0, 0.0]), FLOAT64)


def test_close_is_relative_to_the_scale_and_strict_about_shape_and_nan() -> None:
    assert close(torch.tensor([1000.004, 0.0]), torch.tensor([1000.0, 0.004]))
    assert not close(torch.tensor([1.004, 0.0]), torch.tensor([1.0, 0.004]))
    assert not close(torch.zeros(2), torch.zeros(1))
    assert not close(torch.tensor([float("nan")]), torch.zeros(1))
    assert close(torch.tensor([float("nan"), -torch.inf]), torch.tensor([float("nan"), -torch.inf]))
    assert not same(torch.zeros(1), -torch.zeros(1))
