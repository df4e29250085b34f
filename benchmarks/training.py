"""Rows of training: CENET next to one with dense histories from the host, and RE-GCN's targets side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks import dense_cenet, floors
from benchmarks.bench import SEED, Bench
from benchmarks.harness import Measured, Timing, timed
from benchmarks.machine import Peak, wait
from benchmarks.references import Sampled
from bridgemem.backbones import backbone_defaults
from bridgemem.backbones.cenet import Cenet, CenetSettings
from bridgemem.backbones.regcn import OwnVectors, RegcnNet, Selection, Trainer
from bridgemem.events.dataset import Dataset
from bridgemem.progress import Step
from bridgemem.training.checkpoint import Checkpoint, seeded

GPU_EPOCHS = 4  # the second is recorded on a GPU, those after it show what an epoch costs
CHECKED_FACTS, CHECKED_BATCH = 1500, 256  # of the training without dropout that both versions must agree on
SAME_WEIGHTS = 0.01  # of the way that training moved them
TOGETHER = 8  # targets of a step of RE-GCN
SAME_GRADIENT = 1e-3  # of its length


class Enough(Exception):  # noqa: N818  (no error: the training was watched for long enough)
    """Stops a training that was watched for long enough."""


class StepClock:
    """A progress that notes when the steps of the first stage were taken, and ends the training after it.

    epochs: how many the stage has. seconds: after which it stops at once, even in the middle of an epoch.
    """

    def __init__(self, device: str, epochs: int, seconds: float) -> None:
        self.device, self.epochs, self.seconds = device, epochs, seconds
        self.steps, self.done, self.marks = 0, 0, [0.0]

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        if self.steps:  # the second stage
            raise Enough
        self.steps = (total or 0) // self.epochs
        wait(self.device)
        began = time.perf_counter()

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            self.done += advance
            if not advance:
                return
            whole = self.done % self.steps == 0
            if whole:  # the only place where a device is waited for
                wait(self.device)
                self.marks.append(time.perf_counter() - began)
            if time.perf_counter() - began > self.seconds and self.done < self.epochs * self.steps:
                wait(self.device)
                if not whole:
                    self.marks.append(time.perf_counter() - began)
                raise Enough

        yield step

    def epoch(self) -> tuple[float, int]:
        """Seconds and steps of the fastest whole epoch, or of the part of one that was taken."""
        if self.done < self.steps:
            return self.marks[-1], self.done
        whole = self.done // self.steps
        return min(after - before for before, after in pairwise(self.marks[: whole + 1])), self.steps


def cenet_epoch(b: Bench) -> Measured:
    """An epoch of the first stage; where it is too long, its first steps."""
    on_gpu = b.device.startswith("cuda")
    epochs = GPU_EPOCHS if on_gpu else 1
    settings = replace(b.cenet_settings, epochs=epochs, oracle_epochs=1)
    clock = StepClock(b.device, epochs, 4 * b.budget)
    with Peak() as host, Peak(b.device) as peak, suppress(Enough):
        Cenet.fit(b.dataset, settings, seed=SEED, device=b.device, progress=clock)
    seconds, steps = clock.epoch()
    with Peak(b.device) as plain_peak:
        reference = _dense_steps(b, settings, steps)
    gap = _weights_apart(b)
    facts = min(steps * settings.batch, len(b.train))
    work = floors.cenet_steps(facts, steps, b.known.n_entities, b.known.n_relations, settings)
    whole = (
        "" if steps == clock.steps else f" of {clock.steps}: an epoch takes about {seconds / steps * clock.steps:.0f} s"
    )
    return Measured(
        Timing(seconds, 1, clock.marks[1], peak.highest, peak.added),
        work,
        reference,
        plain_peak.added,
        f"weights within {gap:.1e} of their way",
        gap <= SAME_WEIGHTS,
        note=f"{steps} steps{whole}, {_gigabytes(host)}",
    )


def _dense_steps(b: Bench, settings: CenetSettings, steps: int) -> Sampled:
    """The same steps with dense histories: as many as the budget allows, spread evenly."""
    training = dense_cenet.DenseTraining(b.fresh_net(settings), b.device)
    taken, measured = 0, 0.0
    # spread like this any number of first ones is even too
    spread = sorted(range(steps), key=lambda number: int(f"{number:032b}"[::-1], 2))
    for sides in dense_cenet.batches(b.dataset, settings, spread):
        wait(b.device)
        began = time.perf_counter()
        training.step(sides)
        wait(b.device)
        if taken or steps == 1:  # the first is the warm-up
            measured += time.perf_counter() - began
        taken += 1
        if measured > b.budget:
            break
    return Sampled.of(measured, max(taken - 1, 1) / steps)


def _weights_apart(b: Bench) -> float:
    """How far both versions end apart, as a share of the way they went, in an epoch without dropout over few facts."""
    first = b.train.rows(0, min(CHECKED_FACTS, len(b.train)))
    events = b.train.prefix(int(first.step[-1]) + 1)
    dataset = Dataset("first facts", events, int(first.step[-1]))
    settings = replace(b.cenet_settings, epochs=1, oracle_epochs=1, dropout=0.0, batch=CHECKED_BATCH)
    start = b.fresh_net(settings)
    training = dense_cenet.DenseTraining(start, b.device)
    for sides in dense_cenet.batches(dataset, settings):
        training.step(sides)
    ended = Cenet.fit(dataset, settings, seed=SEED, device=b.device).net.entity.detach()
    way = (ended - start.entity.detach().to(b.device)).norm()
    return float((ended - training.net.entity.detach()).norm() / way)


def cenet_training(b: Bench) -> Measured:
    """All of CENET's training; the plain version is an epoch with dense histories, times the first stage's epochs."""
    s = b.cenet_settings
    with Peak() as host:
        _, timing = timed(lambda: Cenet.fit(b.dataset, s, seed=SEED, device=b.device), b.device, rounds=0)
    steps = len(dense_cenet.batch_bounds(len(b.train), s.batch)) - 1
    with Peak(b.device) as peak:
        epoch = _dense_steps(b, s, steps)
    reference = Sampled(epoch.seconds * s.epochs, epoch.share / s.epochs)
    work = floors.cenet_steps(len(b.train), steps, b.known.n_entities, b.known.n_relations, s) * s.epochs
    note = f"{s.epochs} + {s.oracle_epochs} epochs, plain: the first {s.epochs}, {_gigabytes(host)}"
    return Measured(timing, work, reference, peak.added, "", True, note=note)


def regcn_targets(b: Bench) -> Measured:
    """The gradient of RE-GCN's loss over the last targets of train, side by side; plain: one after the other."""
    wanted = backbone_defaults("regcn", b.dataset.name)
    settings = replace(wanted, together=TOGETHER, dropout=0.0, static=False)
    with seeded(SEED, b.device):
        start = OwnVectors(b.known.n_entities, settings.width)
        selection = Selection(RegcnNet(start, b.known.n_relations, settings)).to(b.device)
    trainer = Trainer(selection, b.dataset, Checkpoint(None, {}, selection))
    targets = range(max(settings.history, trainer.n_train - TOGETHER), trainer.n_train)
    parameters = list(trainer.net.parameters())

    def gradient(parts: list[range]) -> Tensor:
        """Of the mean loss, in one vector."""
        trainer.net.zero_grad(set_to_none=True)
        for part in parts:
            (trainer.loss(part) * (len(part) / len(targets))).backward()
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])

    found, timing = timed(lambda: gradient([targets]), b.device)
    plain, reference = timed(lambda: gradient([range(at, at + 1) for at in targets]), b.device)
    gap = float((found - plain).norm() / plain.norm())
    queries = sum(len(trainer.graph[at]) for at in targets)
    return Measured(
        timing,
        floors.regcn_gradient(queries, b.known.n_entities, b.known.n_relations, settings),
        Sampled.of(reference.seconds),
        reference.added,
        f"gradient within {gap:.1e} of its length",
        gap <= SAME_GRADIENT,
        note=f"{len(targets)} snapshots, {queries:,} queries, {settings.history} snapshots before each",
    )


def _gigabytes(host: Peak) -> str:
    return f"host at most {host.highest / 1e9:.1f} GB in all"
