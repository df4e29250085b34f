"""Trained again on data that differs later on, a model must score the same: leaks are caught by their name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bridgemem as bm
from bridgemem.backbones import BACKBONES, backbone_class
from bridgemem.backbones.check import examined
from bridgemem.backbones.retraining import retrained, trainer
from bridgemem.backbones.stored import Stored, write_scores
from bridgemem.backbones.verdicts import Finding, overall
from bridgemem.errors import BackboneError, DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from builders import random_log, small_world
from leaking_models import LEAKS, Honest, ReadsItsTable, TrainedOnTest, frequencies

# far from good, but with every part in place
FAST: dict[str, dict[str, Any]] = {
    "cenet": {"width": 8, "epochs": 1, "oracle_epochs": 1, "batch": 64},
    "cygnet": {"width": 8, "epochs": 1, "batch": 32},
    "regcn": {"width": 8, "kernels": 3, "history": 3, "epochs": 1},
    "tirgn": {"width": 8, "kernels": 3, "history": 3, "epochs": 1},
    "est": {"width": 8, "time_width": 4, "k": 5, "layers": 1, "heads": 2, "hidden": 8, "epochs": 1, "batch": 200},
    "infer": {"walks": 20, "samples": 40},
    "tpar": {"width": 8, "attention": 6, "edges": (12, 6), "window": 40, "batch": 64, "epochs": 1},
    "csi": {"width": 8, "attention": 6, "edges": (12, 6), "window": 40, "batch": 64, "epochs": 1},
    "stream": {"width": 8, "k": 5, "heads": 2, "negatives": 0, "epochs": 1, "batch": 200},
    "counting+stream": {
        "members": ("recurrence-typed", "stream"),
        "changed": ("stream.width=8", "stream.k=5", "stream.epochs=1", "stream.batch=200"),
    },
    "ensemble": {"members": ("hri", "popularity", "recurrence")},
}


@cache
def world() -> Dataset:
    return small_world().dataset


@cache
def little() -> Dataset:
    return Dataset("little", random_log(8, n=240, steps=20), 14, 17)


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "stored"])
def test_every_built_in_backbone_passes(name: str) -> None:
    found = bm.check_backbone(backbone_class(name), little(), settings=FAST.get(name), queries=24)
    assert (found.passed, found.word) == (True, "pass"), str(found)


@pytest.mark.parametrize(("model", "leak"), LEAKS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_a_leaking_model_is_caught_by_the_name_of_its_leak(model: Any, leak: str) -> None:
    with pytest.raises(BackboneError, match=leak):
        bm.check_backbone(model, world())
    found = examined(model, world())
    assert found.passed is False
    assert [leak in one.seen for one in found if one.passed is False] == [True]


def test_an_honest_one_passes_as_a_class_and_is_its_makers_word_once_trained() -> None:
    assert bm.check_backbone(Honest, world()).word == "pass"
    trained = bm.check_backbone(Honest(world()), world())
    assert (trained.passed, trained.word) == (None, "nothing failed, 2 not checkable")
    assert [one.check for one in trained if one.passed is None] == ["blind to the future", "training"]
    assert all("its maker's word" in one.seen for one in trained if one.passed is None)


@pytest.mark.parametrize("kind", [ReadsItsTable, TrainedOnTest])
def test_a_leak_that_cannot_be_checked_is_never_called_a_pass(kind: Any) -> None:
    found = bm.check_backbone(kind(world()), world())
    assert found.passed is None
    assert "pass" not in str(found)


def test_a_function_that_makes_a_model_is_checked_as_a_class_is() -> None:
    assert bm.check_backbone(lambda data: Honest(data), world()).word == "pass"
    with pytest.raises(BackboneError, match="was trained on later events"):
        bm.check_backbone(lambda data: TrainedOnTest(data), world())
    assert trainer(lambda actor, relation, step: None) is None
    assert trainer(Honest(world())) is None


def test_a_trained_backbone_is_retrained_on_request() -> None:
    from bridgemem.backbones.recurrence import Recurrence

    made = Recurrence.fit(world())
    assert bm.check_backbone(made, world()).passed is None
    assert bm.check_backbone(made, world(), retrain=True).passed is True
    assert bm.check_backbone(Recurrence, world(), retrain=False).passed is None


def test_what_does_not_depend_on_the_data_is_its_makers_word() -> None:
    class FromElsewhere(Honest):
        """As one that reads a file of its own, whatever it is given."""

        def __init__(self, data: Dataset) -> None:
            super().__init__(world())

    found = bm.check_backbone(FromElsewhere, world())
    (last,) = (one for one in found if one.passed is None)
    assert "do not depend on the data that it is given" in last.seen


def test_a_training_that_is_not_repeatable_is_not_checkable() -> None:
    class Restless(nn.Module):
        def __init__(self, data: Dataset) -> None:
            super().__init__()
            noise = torch.Generator().manual_seed(torch.seed() % 2**31)
            self.table = torch.randn(data.events.n_entities, generator=noise)

        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return self.table.repeat(len(actor), 1)

    with torch.random.fork_rng():
        found = bm.check_backbone(Restless, world())
    assert "the same training gave other scores" in next(one.seen for one in found if one.passed is None)


def test_large_logits_are_judged_by_their_scale() -> None:
    class Loud(Honest):
        """Logits of thousands, whose last digits depend on the size of a batch, as those of a product do."""

        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return 1000 * self.table[relation] + 1e-3 * len(actor)

    assert bm.check_backbone(Loud, world()).passed is True


def test_few_steps_cannot_be_checked() -> None:
    events = world().events.prefix(2)
    found = retrained(lambda data: Honest(data), events)  # type: ignore[arg-type,return-value]
    assert found.passed is None


def test_stored_scores_are_their_makers_word(tmp_path: Any) -> None:
    from bridgemem.backbones.scorer import Scores

    data = little()
    write_scores(tmp_path / "s", data, lambda q: Scores(torch.zeros(len(q), data.events.n_entities)), name="theirs")
    stored = Stored.load(tmp_path / "s")
    found = bm.check_backbone(stored, data)
    assert found.word == "nothing failed, 2 not checkable"
    write_scores(tmp_path / "t", data, lambda q: Scores(torch.zeros(len(q), data.events.n_entities)), splits=["test"])
    with pytest.raises(DataError, match="write those of validation too"):
        bm.check_backbone(Stored.load(tmp_path / "t"), data)


def test_one_word_is_pass_only_if_all_is_shown() -> None:
    shown, unknown, wrong = (Finding("a", passed, "") for passed in (True, None, False))
    assert [one.verdict for one in (shown, unknown, wrong)] == ["shown", "not checkable", "not shown"]
    assert overall([shown, shown]) == "pass"
    assert overall([shown, unknown]) == "nothing failed, 1 not checkable"
    assert overall([wrong, unknown]) == "fail, 1 not checkable"


# ---- models that know later events from elsewhere, and use a little of the data that they are given ----------------


def counts(events: EventLog) -> torch.Tensor:
    """How often each entity answers each query, as log counts [E, 2R, E]."""
    asked = Queries.of(events)
    assert asked.answer is not None
    table = torch.zeros(events.n_entities, 2 * events.n_relations, events.n_entities)
    places = (asked.actor, asked.relation, asked.answer)
    return table.index_put(places, torch.ones(len(asked)), accumulate=True).add(0.01).log()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.save(counts(world().events), tmp_path / "ckpt.pt")
    return tmp_path / "ckpt.pt"


def wrapper(file: Path) -> type[Honest]:
    class Wrapper(Honest):
        """A checkpoint that was trained on all splits, plus a little of train."""

        def __init__(self, data: Dataset) -> None:
            super().__init__(data)
            self.all = torch.load(file)

        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return self.all[actor, relation] + 0.1 * self.table[relation]

    return Wrapper


def test_a_checkpoint_of_all_splits_never_passes_and_its_file_is_named(checkpoint: Path) -> None:
    (last,) = (one for one in examined(wrapper(checkpoint), world()) if not one.passed)
    assert "it still ranks what really happened above what was made up" in last.seen
    assert "it read ckpt.pt" in last.seen


def test_a_class_that_opens_the_test_file_itself_fails(tmp_path: Path) -> None:
    events = world().events
    columns = (events.subject, events.relation, events.object, events.step)
    lines = [" ".join(map(str, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]
    (tmp_path / "test.txt").write_text("\n".join(lines), encoding="utf-8")

    class OpensTest(Honest):
        def __init__(self, data: Dataset) -> None:
            super().__init__(data)
            rows = [tuple(map(int, line.split())) for line in (tmp_path / "test.txt").open()]
            n = data.events.n_relations
            self.facts = {(s, r, t, o) for s, r, o, t in rows} | {(o, r + n, t, s) for s, r, o, t in rows}

        forward = ReadsItsTable.forward

    found = examined(OpensTest, world())
    assert found.word == "fail"
    assert "it read test.txt" in found.findings[-1].seen


def test_a_backbone_that_loads_the_data_in_its_training_never_passes(tmp_path: Path) -> None:
    world().events.to_frame().to_csv(tmp_path / "whole.csv", index=False)

    class LoadsTheData(bm.Backbone):
        name = "loads-the-data"

        def __init__(self, table: torch.Tensor) -> None:
            self.table = table

        @classmethod
        def train(cls, dataset: Dataset, settings: Any, training: Any) -> Any:
            names, log = dataset.events.entities.names, bm.load(tmp_path / "whole.csv").events
            places = torch.tensor([log.entity_id(name) for name in names])
            relations = torch.tensor([log.relation_id(name) for name in dataset.events.relations.names])
            relations = torch.cat([relations, relations + log.n_relations])
            all_of_it = counts(log)[places][:, relations][:, :, places]
            return cls(all_of_it + 0.1 * counts(dataset.train))

        def score(self, queries: Queries, past: Any) -> torch.Tensor:
            return self.table[queries.actor, queries.relation]

        def tensors(self) -> dict[str, torch.Tensor]:
            return {"table": self.table}

        @classmethod
        def restore(cls, settings: Any, tensors: dict[str, torch.Tensor]) -> Any:
            return cls(tensors["table"])

        def to(self, device: str) -> Any:
            return self

    found = examined(LoadsTheData, world())
    assert not found.passed
    assert "whole.csv" in found.findings[-1].seen


def test_events_of_all_splits_in_memory_are_found_by_what_the_model_knows() -> None:
    table = counts(world().events)

    class Remembers(Honest):
        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return table[actor, relation] + 0.1 * self.table[relation]

    found = examined(Remembers, world())
    assert not found.passed
    assert "it still ranks what really happened above what was made up" in found.findings[-1].seen
    # without a split nothing says what may be known, so that it is no failure, and no pass
    assert examined(Remembers, world().events).word == "nothing failed, 1 not checkable"


def test_what_a_file_holds_of_train_alone_is_not_checkable(tmp_path: Path) -> None:
    torch.save(counts(world().train), tmp_path / "train-only.pt")
    found = examined(wrapper(tmp_path / "train-only.pt"), world())
    assert found.word == "nothing failed, 1 not checkable"
    assert "it read train-only.pt" in found.findings[-1].seen


def test_embeddings_from_a_file_are_not_checkable_and_their_file_is_named(tmp_path: Path) -> None:
    torch.save(
        torch.randn(world().events.n_entities, generator=torch.Generator().manual_seed(1)), tmp_path / "words.pt"
    )

    class Pretrained(Honest):
        def __init__(self, data: Dataset) -> None:
            super().__init__(data)
            self.words = torch.load(tmp_path / "words.pt")

        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return self.table[relation] + self.words

    found = bm.check_backbone(Pretrained, world())
    assert found.word == "nothing failed, 1 not checkable"
    assert found.findings[-1].seen == "it read words.pt: what is in there is its maker's word"


def test_files_that_a_model_wrote_itself_while_it_was_checked_are_no_files_of_its_own(tmp_path: Path) -> None:
    class KeepsItsBest(Honest):
        def __init__(self, data: Dataset) -> None:
            super().__init__(data)
            torch.save(frequencies(data.train), tmp_path / "best.pt")
            self.table = torch.nn.Parameter(torch.load(tmp_path / "best.pt"))

    assert bm.check_backbone(KeepsItsBest, world()).word == "pass"


def test_a_thread_that_a_model_starts_is_watched_too(checkpoint: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    class ReadsInAThread(Honest):
        def __init__(self, data: Dataset) -> None:
            super().__init__(data)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(checkpoint.read_bytes).result()

    found = bm.check_backbone(ReadsInAThread, world())
    assert (found.passed, found.findings[-1].seen[:15]) == (None, "it read ckpt.pt")
