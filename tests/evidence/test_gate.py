"""Gates, and the uncertainty of backbones without an oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import SettingsError
from bridgemem.evidence.gate import gate, relative_entropy, seen_mass
from builders import few
from precision import FLOAT32, FLOAT64, close


def test_the_uncertain_gate_opens_in_the_middle_and_closes_at_both_ends():
    u = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    log_p = torch.zeros(5, 3)
    assert gate("uncertain", u, log_p).tolist() == [0.0, 0.75, 1.0, 0.75, 0.0]
    assert gate("none", u, log_p).tolist() == [1.0] * 5
    with pytest.raises(SettingsError, match="gate must be uncertain, entropy or none, not 'open'"):
        gate("open", u, log_p)


def test_the_entropy_gate_closes_where_one_candidate_has_all_and_where_all_have_the_same():
    p = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    log_p = p.clamp(min=1e-300).log() + 3  # log scores need no normalising
    share = relative_entropy(log_p)
    assert close(share, torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64), FLOAT64)
    # the uncertainty that a backbone has is not looked at
    assert close(gate("entropy", torch.full((3,), 0.9), log_p), 4 * share * (1 - share), FLOAT64)
    assert relative_entropy(torch.zeros(2, 1)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_of_minus_infinity_counts_as_if_it_were_not_there(dtype):
    log_p = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = torch.full((5, 90), -torch.inf, dtype=dtype)
    wide[:, 7:47] = log_p
    row, candidate = torch.tensor([0, 0, 2, 4]), torch.tensor([3, 9, 1, 39])
    assert close(relative_entropy(wide), relative_entropy(log_p))
    assert close(seen_mass(wide, row, candidate + 7), seen_mass(log_p, row, candidate))


@few
@given(
    rows=st.lists(st.lists(st.floats(-30, 5), min_size=4, max_size=4), min_size=1, max_size=5),
    seen=st.sets(st.integers(0, 3)),
)
def test_seen_mass_is_the_share_of_probability_on_seen_candidates(rows, seen):
    log_p = torch.tensor(rows, dtype=torch.float64)
    row = torch.arange(len(rows)).repeat_interleave(len(seen))
    candidate = torch.tensor(sorted(seen) * len(rows), dtype=torch.int64)
    expected = log_p.softmax(1)[:, sorted(seen)].sum(1)
    mass = seen_mass(log_p, row, candidate)
    assert close(mass, expected, FLOAT32)  # powers of e are taken in single precision
    assert ((mass >= 0) & (mass <= 1)).all()
    shifted = seen_mass(log_p + 7, row, candidate)
    assert close(shifted, mass, FLOAT32), "scores need not be normalised"
