"""Rows of fitting: the index, the examples, the count table, the reader, its epochs, and all of them together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks import floors
from benchmarks import references as plain
from benchmarks.bench import SEED, Bench, first_facts
from benchmarks.harness import Measured, timed
from benchmarks.machine import Peak
from benchmarks.references import Sampled
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.events.log import EventLog
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.reader import Reader, ReaderTraining
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.dyads import DyadMemory
from bridgemem.residuals.cases import Cases
from bridgemem.residuals.learned import SCALES, LearnedNet, LearnedSettings
from bridgemem.residuals.learning import Fit, fit_cases, gather
from bridgemem.residuals.validation import Validation

FIT_EPOCHS = 3
LEARNED_QUERIES = 4096  # that the learned residual is fitted on
CURVE = 0.25  # nats by which its likelihood may differ: one is of a training epoch, the other of some of the queries
CLOSE = 1e-3  # nats by which a likelihood may differ from the plain version's
PLAIN_CASES = 2048  # queries that the plain version reads and fits one by one
JUDGED = 1 << 16  # examples that two readers are compared on


# --- memory, examples, counts ----------------------------------------------------------------------------------------


def index_build(b: Bench) -> Measured:
    memory, timing = timed(lambda: DyadMemory.build(b.train, b.device), b.device)
    with Peak() as peak:
        began = time.perf_counter()
        index = plain.pair_index(b.few)
        measured = time.perf_counter() - began
    share = len(b.few) / len(b.train)
    own = memory if share == 1 else DyadMemory.build(b.few)
    ordered = sorted(index)
    rows = np.concatenate([index[pair] for pair in ordered])
    same = torch.equal(own.pairs.cpu(), torch.tensor([(a << 32) | c for a, c in ordered]))
    same &= all(
        np.array_equal(getattr(own, name).cpu().numpy(), rows[:, at])
        for at, name in enumerate(("step", "relation", "direction"))
    )
    agreement = f"{len(rows):,} rows of {len(ordered):,} pairs " + ("identical" if same else "differ")
    return Measured(timing, floors.index(b.train), Sampled.of(measured, share), peak.added, agreement, same)


def example_mining(b: Bench) -> Measured:
    examples, timing = timed(lambda: mine(b.train, b.space, b.settings))
    index = plain.pair_index(b.few)
    with Peak() as peak:
        began = time.perf_counter()
        tokens, target, step = plain.mine(index, b.space, b.settings)
        measured = time.perf_counter() - began
    share = len(b.few) / len(b.train)
    own = examples if share == 1 else mine(b.few, b.space, b.settings)
    same = all(
        np.array_equal(mined.numpy(), mined_plainly)
        for mined, mined_plainly in ((own.tokens, tokens), (own.target, target), (own.step, step))
    )
    expected = b.paper.get("examples")
    agreement = f"{len(target):,} examples " + ("identical" if same else "differ")
    # the paper samples down to the most that its reader is trained on
    if expected is not None and min(len(examples), b.settings.max_examples) != expected:
        same, agreement = False, f"{agreement}, and {len(examples):,} of them where the paper has {expected:,}"
    return Measured(timing, floors.mining(b.train, examples), Sampled.of(measured, share), peak.added, agreement, same)


def index_and_mining(b: Bench) -> Measured:
    """Both from nothing, as one cost."""
    examples, timing = timed(lambda: (DyadMemory.build(b.train), mine(b.train, b.space, b.settings))[1])
    with Peak() as peak:
        began = time.perf_counter()
        plain.mine(plain.pair_index(b.few), b.space, b.settings)
        reference = Sampled.of(time.perf_counter() - began, len(b.few) / len(b.train))
    work = floors.index(b.train) + floors.mining(b.train, examples)
    return Measured(timing, work, reference, peak.added, f"{len(examples):,} examples", True)


def count_table(b: Bench) -> Measured:
    table, timing = timed(lambda: CountTable.of(b.examples, b.space))
    tokens, target = b.examples.tokens.long().numpy(), b.examples.target.numpy()
    with Peak() as peak:
        counted, reference = _plainly(lambda: plain.count_table(tokens, target, b.space))
    same = np.array_equal(table.counts.cpu().numpy(), counted)
    agreement = f"{int(counted.sum()):,} counts " + ("identical" if same else "differ")
    return Measured(timing, floors.counts(b.examples, b.space), reference, peak.added, agreement, same)


def _plainly(work: Callable[[], np.ndarray]) -> tuple[np.ndarray, Sampled]:
    result, timing = timed(work)
    return result, Sampled.of(timing.seconds)


# --- the reader ------------------------------------------------------------------------------------------------------


def reader_fit(b: Bench) -> Measured:
    early, late, log_pi = b.halves
    arguments = (early, b.space, log_pi, b.settings)

    def fitted(epochs: int) -> Reader:
        return ReaderTraining(early, log_pi, b.settings, SEED, b.device).train(epochs)

    reader, timing = timed(lambda: fitted(FIT_EPOCHS), b.device, rounds=2)
    with Peak(b.device) as peak:
        plain_reader, done, reference = plain.fit_reader(*arguments, FIT_EPOCHS, SEED, b.device, b.budget)
    if done < FIT_EPOCHS:
        reader = fitted(done)
    gap = _gap(b, reader, plain_reader, late)
    agreement = f"NLL within {gap:.1e} after {done} epochs"
    work = floors.reader_epoch(early, b.space, b.settings) * FIT_EPOCHS
    return Measured(timing, work, reference, peak.added, agreement, gap <= CLOSE, note=f"{FIT_EPOCHS} epochs")


def _gap(b: Bench, reader: Reader, plain_reader: plain.PlainReader, judged: Examples) -> float:
    """By how much the mean -log p(target | state) of two readers differs on some of the examples."""
    some = judged.take(torch.linspace(0, len(judged) - 1, min(len(judged), JUDGED)).long())
    tokens, target = some.tokens.long().to(b.device), some.target.to(b.device)
    log_p = reader.evidence(tokens).double() + reader.log_prior.double()
    own = -float(log_p.gather(1, target[:, None]).mean())
    return abs(own - plain.judge(plain_reader, plain.token_parts(tokens, b.space), target, b.settings.batch))


def epoch_selection(b: Bench) -> Measured:
    early, late, log_pi = b.halves
    arguments = (early, late, b.space, log_pi, b.settings, SEED, b.device)

    def chosen() -> tuple[int, list[float]]:
        return ReaderTraining(early, log_pi, b.settings, SEED, b.device).best_epochs(late)

    (epochs, curve), timing = timed(chosen, b.device, rounds=2)
    with Peak(b.device) as peak:
        plain_epochs, plain_curve, whole, measured = plain.choose_epochs(*arguments, b.budget)
    agreement, agrees = _same_curve(curve, epochs, plain_curve, plain_epochs, whole)
    reference = Sampled.of(measured, 1.0 if whole else len(plain_curve) / len(curve))
    work = floors.reader_epoch(early, b.space, b.settings) + floors.reader_judgement(late, b.space, b.settings)
    return Measured(timing, work * len(curve), reference, peak.added, agreement, agrees, note=f"{len(curve)} epochs")


def _same_curve(
    curve: list[float] | tuple[float, ...], epochs: int, plain_curve: list[float], plain_epochs: int, whole: bool
) -> tuple[str, bool]:
    """In words, and whether the curves are close where both were measured, and the choice the same if both ended."""
    gap = max((abs(a - c) for a, c in zip(curve, plain_curve, strict=False)), default=0.0)
    text = f"curve within {gap:.1e} over {min(len(curve), len(plain_curve))} epochs"
    if not whole:
        return text, gap <= CLOSE
    return f"{text}, epoch {epochs} and {plain_epochs}", gap <= CLOSE and epochs == plain_epochs


def select_and_fit(b: Bench) -> Measured:
    """All of a fit: mining, counting, choosing the epochs, and training anew for as many."""
    (found, choice), timing = timed(lambda: Transitions.fit(b.train, b.settings, SEED, b.device), b.device, rounds=2)
    early, late, log_pi = b.halves
    with Peak(b.device) as peak:
        mined = _plain_mining(b, b.train)
        epochs, curve, whole, measured = plain.choose_epochs(
            early, late, b.space, log_pi, b.settings, SEED, b.device, b.budget
        )
        fitted = _plain_fit(b, b.sample, b.train, choice.epochs)[1]
    agreement, agrees = _same_curve(choice.curve, choice.epochs, curve, epochs, whole)
    chosen = Sampled.of(measured, 1.0 if whole else len(curve) / len(choice.curve))
    one = floors.reader_epoch(early, b.space, b.settings) + floors.reader_judgement(late, b.space, b.settings)
    work = one * len(choice.curve) + _fit_work(b, b.train, b.examples, b.sample, choice.epochs)
    note = f"{len(choice.curve)} + {choice.epochs} epochs"
    paper = b.paper.get("select_fit")
    parameters = sum(p.numel() for p in found.reader.parameters())
    counts = {"parameters": parameters, "epochs": choice.epochs, "transitions": choice.examples}
    return Measured(timing, work, mined + chosen + fitted, peak.added, agreement, agrees, paper, note, counts)


def final_refit(b: Bench) -> Measured:
    """Mining, counting and training on train + validation, for the number of epochs that the paper chose."""
    epochs = int(b.paper.get("epochs", b.settings.max_epochs))
    fit = partial(Transitions.fit, b.known, b.settings, SEED, b.device)
    (transitions, _), timing = timed(lambda: fit(epochs=epochs), b.device, rounds=2)
    examples = mine(b.known, b.space, b.settings)
    sample = examples.sample(b.settings.max_examples, SEED)
    with Peak(b.device) as peak:
        mined = _plain_mining(b, b.known)
        (reader, done), fitted = _plain_fit(b, sample, b.known, epochs)
    own = (transitions if done == epochs else fit(epochs=done)[0]).reader
    gap = _gap(b, own, reader, sample)
    agreement = f"NLL within {gap:.1e} after {done} epochs"
    work = _fit_work(b, b.known, examples, sample, epochs)
    paper, note = b.paper.get("refit"), f"{epochs} epochs"
    return Measured(timing, work, mined + fitted, peak.added, agreement, gap <= CLOSE, paper, note)


def learned_fit(b: Bench) -> Measured:
    """The learned residual: validation queries and a sample of their candidates read, the network fitted.

    The plain version reads all candidates and fits for as many epochs as it takes to choose and fit anew.
    """
    settings, backbone = LearnedSettings(valid_queries=LEARNED_QUERIES), RecurrenceDyadic.fit(b.dataset)
    transitions, n_directed = b.transitions.to("cpu"), 2 * b.known.n_relations

    def fit() -> tuple[Cases, Fit]:
        cases = gather(Validation.of(b.dataset, backbone), transitions, settings, seed=SEED)
        return cases, fit_cases(cases, "raw", settings, seed=SEED)

    (cases, found), timing = timed(fit, rounds=2)
    with Peak() as peak:
        began = time.perf_counter()
        few = b.queries.take(torch.linspace(0, len(b.queries) - 1, min(len(cases), PLAIN_CASES)).long())
        read = plain.learned_cases(b.dataset, backbone, transitions, few, "raw", settings.unseen_candidates)
        share = len(few) / len(cases)
        reading, old = Sampled.of(time.perf_counter() - began, share), plain.PlainSettings()
        _, done, seconds = plain.fit_learned(read, n_directed, old, SEED, b.budget)
    fitting = Sampled.of(seconds * 2 * old.max_epochs / done, share)
    exact, sampled = _learned_loss(found.model.net, read, cases.scale), found.curve[-1]
    agreement = (
        f"{len(cases):,} queries, -log p {sampled:.3f} by sampled candidates, {exact:.3f} by all of {len(few):,}"
    )
    work = floors.Work(bytes=float(cases.x.nbytes * settings.epochs))
    near = abs(exact - sampled) <= CURVE
    return Measured(timing, work, reading + fitting, peak.added, agreement, near, note=f"{settings.epochs} epochs")


@torch.no_grad()
def _learned_loss(net: LearnedNet, cases: Sequence[plain.PlainCase], scale: float) -> float:
    """The mean of -log of the answer's share among all candidates, of a fitted network at a scale of SCALES."""
    found, place = list[Tensor](), SCALES.index(scale)
    for case in cases:
        f = net(case.x.float(), torch.full((len(case.x),), case.relation))
        own = scale * case.own + (0.0 if case.answer is None else f[case.answer])
        logits = (scale * case.log_p + f).masked_fill(case.removed, -torch.inf)
        found.append(torch.cat([logits, case.rest[place][None]]).logsumexp(0) - own)
    return float(torch.stack(found).mean())


def _fit_work(b: Bench, events: EventLog, examples: Examples, sample: Examples, epochs: int) -> floors.Work:
    mined = floors.mining(events, examples) + floors.counts(examples, b.space)
    return mined + floors.reader_epoch(sample, b.space, b.settings) * epochs


def _plain_mining(b: Bench, events: EventLog) -> Sampled:
    """The index, the examples and the count table of the first facts."""
    few, began = first_facts(events), time.perf_counter()
    tokens, target, _ = plain.mine(plain.pair_index(few), b.space, b.settings)
    plain.count_table(tokens, target, b.space)
    return Sampled.of(time.perf_counter() - began, len(few) / len(events))


def _plain_fit(
    b: Bench, sample: Examples, events: EventLog, epochs: int
) -> tuple[tuple[plain.PlainReader, int], Sampled]:
    reader, done, cost = plain.fit_reader(
        sample, b.space, log_prior(events), b.settings, epochs, SEED, b.device, b.budget / 2
    )
    return (reader, done), cost
