"""The paper's Table 2: transition examples and reader parameters of all five data sets, to the last digit."""

from __future__ import annotations

import pytest

from bridgemem.config import Settings
from bridgemem.events.datasets import load_benchmark
from bridgemem.evidence.counts import log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.reader import Reader
from bridgemem.evidence.tokens import TokenSpace


@pytest.mark.parametrize(
    ("name", "facts", "examples", "parameters"),
    [
        ("icews14", (74_845, 8_514, 7_371), 88_988, 83_021),
        ("icews18", (373_018, 45_995, 49_545), 448_044, 91_393),
        ("icews05-15", (368_868, 46_302, 46_159), 476_338, 89_783),
        ("gdelt", (1_734_399, 238_765), 2_188_380, 86_241),
        ("wiki", (539_286, 67_538, 63_110), 1_048_280, 16_689),
    ],
)
def test_transition_examples_and_parameters_are_the_papers(data_dir, name, facts, examples, parameters):
    dataset = load_benchmark(name, data_dir)
    splits = ("train", "valid", "test")[: len(facts)]
    assert tuple(len(dataset.split(split)) for split in splits) == facts
    settings = Settings()
    space = TokenSpace.of(settings, dataset.events.n_relations)
    mined = mine(dataset.train, space, settings)
    assert len(mined) == examples
    assert len(mined.sample(settings.max_examples, seed=42)) == min(examples, 2_000_000)
    reader = Reader(space, log_prior(dataset.train), settings.width, settings.hidden)
    assert sum(p.numel() for p in reader.parameters()) == parameters
