"""Batches by state: the same gradients, likelihoods and trainings as reading every example by itself."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bridgemem.config import Settings
from bridgemem.equations import memory_state
from bridgemem.evidence import batches as batches_module
from bridgemem.evidence.batches import StateTable, head_loss
from bridgemem.evidence.counts import log_prior
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.reader import Reader, ReaderTraining, mean_loss
from bridgemem.evidence.tokens import TokenSpace
from builders import SMALL_READER, negative_log_likelihood, random_log, random_transitions, small_world
from precision import close

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def plain_loss(reader: Reader, tokens: Tensor, target: Tensor) -> Tensor:
    """Equations 1 and 2 for every example by itself, with the library's own cross entropy."""
    m, _ = memory_state(*reader.token_tables(), tokens.long())
    return F.cross_entropy(reader.head(m) + reader.log_prior, target)


def plain_training(
    early: Examples, late: Examples, space: TokenSpace, log_pi: Tensor, settings: Settings, seed: int, device: str
) -> tuple[Reader, list[float]]:
    """The plain loop over shuffled batches, and the likelihood of the later examples after every epoch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        reader = Reader(space, log_pi, settings.width, settings.hidden).to(device)
    early, late = early.to(device), late.to(device)
    shuffle = torch.Generator(device=device).manual_seed(seed)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=settings.learning_rate)
    curve = []
    for _ in range(settings.max_epochs):
        order = torch.randperm(len(early), generator=shuffle, device=device)
        for rows in order.split(settings.batch):
            optimizer.zero_grad()
            plain_loss(reader, early.tokens[rows], early.target[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            curve.append(float(plain_loss(reader, late.tokens, late.target)))
    return reader, curve


def opinionated(seed: int = 1, n: int = 200) -> tuple[Reader, Examples, int]:
    events = random_log(seed, n)
    transitions = random_transitions(events)
    return transitions.reader, mine(events, transitions.space, SMALL_READER), transitions.space.n_directed


def gradients(reader: Reader, loss: Callable[[], Tensor]) -> tuple[float, dict[str, Tensor]]:
    reader.zero_grad()
    value = loss()
    value.backward()
    return value.item(), {name: p.grad.clone() for name, p in reader.named_parameters() if p.grad is not None}


def assert_same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert close(found[name], gradient), name


@pytest.mark.parametrize("rows_at_a_time", [3, 10**6])
def test_a_batch_by_state_has_the_gradients_of_its_examples(
    monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int
) -> None:
    reader, examples, n_directed = opinionated()
    monkeypatch.setattr(batches_module, "piece_rows", lambda width, device: rows_at_a_time)
    batch = StateTable(examples, n_directed).whole()
    assert len(batch.states) < len(examples), "some states repeat"
    expected, by_example = gradients(reader, lambda: plain_loss(reader, examples.tokens, examples.target))
    value, by_state = gradients(reader, lambda: reader.loss(batch))
    assert value == pytest.approx(expected, rel=1e-5)
    assert_same_gradients(by_state, by_example)
    assert mean_loss(reader, batch) == pytest.approx(expected, rel=1e-5)


def test_rows_of_no_weight_do_not_matter() -> None:
    reader, examples, n_directed = opinionated()
    rows = torch.tensor([5, 0, 9, 5])
    _, expected = gradients(reader, lambda: plain_loss(reader, examples.tokens[rows], examples.target[rows]))
    weight = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0, 0.0])
    filled = StateTable(examples, n_directed).at(F.pad(rows, (0, 2)), weight)
    _, found = gradients(reader, lambda: reader.loss(filled))
    assert_same_gradients(found, expected)


def test_batches_are_those_of_the_order() -> None:
    _, examples, n_directed = opinionated()
    table = StateTable(examples, n_directed)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(3))
    parts = order.split(32)
    found = list(table.batches(order, 32))
    assert len(found) == len(parts)
    assert len(parts[-1]) < 32, "the last one is short"
    for batch, rows in zip(found, parts, strict=True):
        states = batch.states.sort(dim=1).values[batch.state].tolist()
        seen = {}
        for state, target, weight in zip(states, batch.target.tolist(), batch.weight.tolist(), strict=True):
            seen[tuple(state), target] = weight * len(rows)
        expected: dict[tuple[tuple[int, ...], int], int] = {}
        for tokens, target in zip(examples.tokens[rows].tolist(), examples.target[rows].tolist(), strict=True):
            expected[tuple(sorted(tokens)), target] = expected.get((tuple(sorted(tokens)), target), 0) + 1
        assert seen == pytest.approx(expected)
        mass = torch.zeros(len(batch.states)).index_add_(0, batch.state, batch.weight)
        assert close(batch.mass, mass)
        assert len(set(map(tuple, batch.states.sort(dim=1).values.tolist()))) == len(batch.states), "each state once"


def test_a_loss_too_large_for_a_float_still_has_its_gradient() -> None:
    hidden, weight = torch.ones(1, 1, requires_grad=True), torch.tensor([[0.0], [200.0]], requires_grad=True)
    one = StateTable(Examples(torch.zeros(1, 1).short(), torch.tensor([0]), torch.tensor([0])), 2).whole()
    loss = head_loss(hidden, weight, torch.zeros(2), one)
    loss.backward()
    assert math.isfinite(loss.item())
    assert weight.grad is not None
    assert hidden.grad is not None
    assert close(weight.grad, torch.tensor([[-1.0], [1.0]]))
    assert close(hidden.grad, torch.tensor([[200.0]]))


def test_saliences_far_apart_stay_finite() -> None:
    reader, examples, n_directed = opinionated()
    with torch.no_grad():
        reader.attention.weight *= 1e4
    batch = StateTable(examples, n_directed).whole()
    value, found = gradients(reader, lambda: reader.loss(batch))
    assert math.isfinite(value)
    assert all(g.isfinite().all() for g in found.values())


def test_the_likelihood_of_no_examples_is_zero() -> None:
    reader, examples, _ = opinionated()
    assert negative_log_likelihood(reader, examples.take(torch.arange(0))) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_training_by_state_is_the_plain_training(device: str) -> None:
    events = small_world().dataset.train
    settings = replace(SMALL_READER, max_epochs=6)
    space, log_pi = TokenSpace.of(settings, events.n_relations), log_prior(events)
    examples = mine(events, space, settings)
    cut = int(np.quantile(examples.step.numpy(), 0.9))
    early, late = (examples.take(side.nonzero().squeeze(1)) for side in (examples.step < cut, examples.step >= cut))
    expected, curve = plain_training(early, late, space, log_pi, settings, 7, device)
    epochs, found = ReaderTraining(early, log_pi, settings, 7, device).best_epochs(late)
    assert found == pytest.approx(curve, abs=1e-4)
    assert epochs == int(np.argmin(curve)) + 1
    training = ReaderTraining(early, log_pi, settings, 7, device)
    for _ in range(settings.max_epochs):
        training.epoch()
    same = training.reader.state_dict()
    for name, tensor in expected.state_dict().items():
        # a shift of all saliences changes nothing, and its gradient is what rounding leaves of zero
        if name != "attention.bias":
            assert close(same[name], tensor, 0.0001), name


def test_batches_of_one_shape_train_like_batches_by_state() -> None:
    events = small_world().dataset.train
    space, log_pi = TokenSpace.of(SMALL_READER, events.n_relations), log_prior(events)
    examples = mine(events, space, SMALL_READER)
    assert len(examples) % SMALL_READER.batch, "the last batch is filled up"
    one, other = (ReaderTraining(examples, log_pi, SMALL_READER, 7) for _ in range(2))
    for _ in range(2):
        order = torch.randperm(len(examples), generator=other.shuffle)
        one.epoch()
        other._replay(order)
    for name, tensor in one.reader.state_dict().items():
        if name != "attention.bias":
            assert close(other.reader.state_dict()[name], tensor), name


class Operations(TorchDispatchMode):
    """Counts what is launched, and the rows of the widest matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.launched, self.flops = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            self.launched += 1
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return found


def test_a_step_launches_little_and_multiplies_only_distinct_states() -> None:
    """What a step costs, in counts: they grow neither with the clock of the machine nor with the number of examples."""
    events = small_world().dataset.train
    space, log_pi = TokenSpace.of(SMALL_READER, events.n_relations), log_prior(events)
    examples = mine(events, space, SMALL_READER)
    training = ReaderTraining(examples, log_pi, replace(SMALL_READER, batch=len(examples)), 7)
    order = torch.arange(len(examples))
    (batch,) = training.examples.batches(order, len(examples))
    with Operations() as by_state:
        training.steps.take(0, lambda: training.reader.loss(batch), stays=False)
    with Operations() as of_one_shape:
        training._replay(order)
    width, hidden, out = SMALL_READER.width, SMALL_READER.hidden, space.n_directed
    salience = 3 * 2 * space.size * width
    per_state = 3 * 2 * (width * hidden + hidden * out)
    assert by_state.flops <= len(batch.states) * per_state + salience
    assert of_one_shape.flops <= len(examples) * per_state + salience
    assert by_state.flops < 0.9 * of_one_shape.flops
    assert max(by_state.launched, of_one_shape.launched) <= 110


def test_a_fit_loads_no_compiler() -> None:
    """Loading one takes longer than the fit of a small data set on a GPU."""
    script = (
        "import sys\n"
        "from bridgemem.config import Settings\n"
        "from bridgemem.events.world import WorldSettings, simulate\n"
        "from bridgemem.evidence.transitions import Transitions\n"
        "events = simulate(WorldSettings(actors=20, relations=4, steps=30, events=500, partners=4)).dataset.train\n"
        "Transitions.fit(events, Settings(width=4, hidden=4, max_epochs=1), seed=1)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
