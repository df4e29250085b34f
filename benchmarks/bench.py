"""Bench: one data set on one device, with all that several rows of the table share."""

from __future__ import annotations

import tomllib
from functools import cached_property
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.cenet import Cenet, CenetNet, CenetSettings
from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import benchmark_status, load_benchmark
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.evidence.counts import log_prior
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.training.checkpoint import seeded

WORLDS = {
    "world": WorldSettings(),
    "tiny": WorldSettings(actors=30, relations=8, steps=60, events=2400, partners=6, seed=3),
}
SEED = 42
SAMPLE_FACTS = 100_000  # facts that the plain index and the plain mining are run on
SAMPLE_QUERIES = 2048


class Bench:
    """One data set on one device, with all that several rows share; budget: seconds that a reference may take."""

    def __init__(self, dataset: Dataset, device: str = "cpu", budget: float = 20.0) -> None:
        self.dataset, self.device, self.budget = dataset, device, budget
        self.settings = Settings()
        self.cenet_settings = CenetSettings()
        self.train, self.known = dataset.train, dataset.known
        self.space = TokenSpace.of(self.settings, self.train.n_relations)
        table = tomllib.loads(resources.files("bridgemem.studies").joinpath("paper.toml").read_text("utf-8"))
        columns = ("epochs", "examples", "select_fit", "refit")
        # a data set that the paper does not have has no figures of it
        self.paper = dict(zip(columns, table["table2"].get(dataset.name, ()), strict=False))

    @cached_property
    def examples(self) -> Examples:
        return mine(self.train, self.space, self.settings)

    @cached_property
    def sample(self) -> Examples:
        return self.examples.sample(self.settings.max_examples, SEED)

    @cached_property
    def halves(self) -> tuple[Examples, Examples, Tensor]:
        """The earlier nine tenths of the examples, the later tenth, and the prior of what came before the cut."""
        cut = int(np.quantile(self.sample.step.numpy(), 0.9))
        early, late = (
            self.sample.take(side.nonzero().squeeze(1)) for side in (self.sample.step < cut, self.sample.step >= cut)
        )
        return early, late, log_prior(self.train.prefix(cut))

    @cached_property
    def few(self) -> EventLog:
        return first_facts(self.train)

    @cached_property
    def transitions(self) -> Transitions:
        """Fitted for one epoch: what reading it costs does not depend on how well it reads."""
        return Transitions.fit(self.train, self.settings, SEED, self.device, epochs=1)[0]

    @cached_property
    def cenet(self) -> Cenet:
        """A CENET as it is before training, whose scores cost what those of a trained one do."""
        return Cenet(self.cenet_settings, self.fresh_net(self.cenet_settings).to(self.device))

    def fresh_net(self, settings: CenetSettings) -> CenetNet:
        with seeded(SEED, self.device):
            return CenetNet(self.known.n_entities, self.known.n_relations, settings)

    @cached_property
    def past(self) -> Past:
        return Past(self.known, device=self.device)

    @cached_property
    def queries(self) -> Queries:
        """Both sides of every fact of validation, which all data sets have."""
        return Queries.of(self.dataset.valid)

    def few_queries(self) -> Queries:
        """Queries spread evenly over validation."""
        n = len(self.queries)
        return self.queries.take(torch.linspace(0, n - 1, min(n, SAMPLE_QUERIES)).long())


def first_facts(events: EventLog) -> EventLog:
    """As many as a plain loop gets through."""
    return events.rows(0, min(len(events), SAMPLE_FACTS))


def load(name: str, data: Path | None) -> Dataset:
    """A simulated world, or a named data set from a folder of packs or text files."""
    return simulate(WORLDS[name]).dataset if name in WORLDS else load_benchmark(name, data)


def default_dataset(data: Path | None) -> str:
    """icews14 where it is at hand, else the simulated world."""
    try:
        return "icews14" if benchmark_status("icews14", data).copy is not None else "world"
    except ModuleNotFoundError:  # a machine that has no more than the numeric core cannot name the user's cache
        return "world"
