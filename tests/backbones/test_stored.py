"""Stored scores: what was written comes back bit for bit, and everything that does not fit is refused."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bridgemem as bm
from bridgemem.backbones import load_backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.hri import Hri
from bridgemem.backbones.scorer import Scores, score_queries
from bridgemem.backbones.stored import ScoreWriter, Stored, StoredSettings, distinct, score_writer, write_scores
from bridgemem.errors import BackboneError, BridgeMemError, NotFoundError, RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.scoring import Scoring, replay
from bridgemem.storage.tensors import write_tensors
from builders import SMALL_READER, dataset_of, random_log, small_world
from fits import fit_run

FORMS = ("safetensors", "npy")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "own-model.md"


def small() -> Dataset:
    return dataset_of(random_log(4, n=300))


def hashed(queries: Queries) -> Tensor:
    """A stand-in for an outside model: scores that differ by query and candidate, float32 [n, 12]."""
    mixed = queries.actor * 7 + queries.relation * 13 + queries.step * 29
    return torch.sin(mixed[:, None] * (torch.arange(12) + 1).float()).log_softmax(1)


def outside(queries: Queries) -> Scores:
    return Scores(hashed(queries))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_scores(tmp_path / "scores", small(), outside, batch=16)
    return tmp_path / "scores"


def asked() -> tuple[Queries, Past]:
    dataset = small()
    return Queries.of(dataset.test), Past(dataset.events)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_scores_come_back_bit_for_bit_in_any_order(form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    dataset = small()
    write_scores(tmp_path / "scores", dataset, lambda q: Scores(hashed(q).to(dtype)), batch=16, form=form)
    assert len(list((tmp_path / "scores").glob(f"scores-*.{form}"))) > 2
    backbone = load_backbone(tmp_path / "scores")
    assert isinstance(backbone, Stored)
    for split in ("valid", "test"):
        queries = Queries.of(dataset.split(split))
        queries = queries.take(torch.from_numpy(np.random.default_rng(0).permutation(len(queries))))
        scores = score_queries(backbone, queries, Past(dataset.events))
        assert scores.log_p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert torch.equal(scores.log_p, hashed(queries).to(dtype).to(scores.log_p.dtype))


def test_they_are_not_cross_fitted(folder: Path, tmp_path: Path) -> None:
    own = LearnedSettings(cross_fit=0.25)
    with pytest.raises(SettingsError, match="stored scores cannot be trained; leave cross_fit out"):
        fit_run(small(), folder, tmp_path / "run", SMALL_READER, residual="learned", learned_settings=own)
    assert not (tmp_path / "run").exists()


def test_each_query_is_asked_once_and_in_order_of_time() -> None:
    dataset = small()
    queries = distinct(dataset)
    found = list(zip(queries.step.tolist(), queries.relation.tolist(), queries.actor.tolist(), strict=True))
    parts = [Queries.of(dataset.valid), Queries.of(dataset.test)]
    every = [row for p in parts for row in zip(p.step.tolist(), p.relation.tolist(), p.actor.tolist(), strict=True)]
    assert found == sorted(set(every))
    assert len(found) < len(every)
    assert queries.answer is None


def test_data_without_test_is_asked_about_validation_alone(tmp_path: Path) -> None:
    dataset = small().without_test()
    write_scores(tmp_path / "scores", dataset, outside)
    queries = Queries.of(dataset.valid)
    backbone = Stored.fit(dataset, StoredSettings(str(tmp_path / "scores")))
    assert torch.equal(backbone.score(queries, Past(dataset.events)).log_p, hashed(queries))


def test_an_uncertainty_comes_back_with_its_query(tmp_path: Path) -> None:
    dataset = small()

    def oracle(queries: Queries) -> Tensor:
        return (queries.actor * 5 + queries.relation) % 8 / 8

    write_scores(tmp_path / "scores", dataset, lambda q: Scores(hashed(q), oracle(q)), batch=16)
    queries, past = asked()
    found = load_backbone(tmp_path / "scores").score(queries, past).uncertainty
    assert found is not None
    assert torch.equal(found, oracle(queries))
    write_scores(tmp_path / "without", dataset, outside)
    assert load_backbone(tmp_path / "without").score(queries, past).uncertainty is None


@pytest.mark.parametrize("form", FORMS)
def test_it_keeps_the_contract(form: str, tmp_path: Path) -> None:
    world = small_world()
    hri, past = Hri.fit(world.dataset), Past(world.events)
    write_scores(
        tmp_path / "scores", world.dataset, lambda q: hri.score(q, past), ("train", "valid", "test"), form=form
    )
    check_backbone(Stored.fit(world.dataset, StoredSettings(str(tmp_path / "scores"))), world.events)


def test_stored_scores_of_a_backbone_rank_as_the_backbone_itself(tmp_path: Path) -> None:
    dataset = small()
    hri, past, filters, queries = Hri.fit(dataset), Past(dataset.events), Filters(dataset.events), asked()[0]
    write_scores(tmp_path / "scores", dataset, lambda q: hri.score(q, past))
    stored = Stored.fit(dataset.without_test(), StoredSettings(str(tmp_path / "scores")))
    ours, theirs = (replay(Scoring(backbone, past), queries, filters=filters) for backbone in (stored, hri))
    assert np.array_equal(ours.ranks, theirs.ranks)
    assert np.array_equal(ours.uncertainty, theirs.uncertainty)


def test_a_saved_copy_stands_by_itself_and_keeps_its_settings(folder: Path, tmp_path: Path) -> None:
    queries, past = asked()
    settings = StoredSettings(str(folder))
    backbone = Stored.fit(small(), settings)
    expected = backbone.score(queries, past).log_p
    for _ in range(2):
        backbone.save(tmp_path / "saved")
    shutil.rmtree(folder)
    again = load_backbone(tmp_path / "saved")
    assert again.settings == settings
    assert torch.equal(again.score(queries, past).log_p, expected)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_shards_are_mapped_and_not_read_as_a_whole(tmp_path: Path) -> None:
    queries, past = asked()
    for form in FORMS:
        write_scores(tmp_path / form, small(), outside, form=form)
        backbone = Stored.load(tmp_path / form)
        backbone.score(queries, past)
        shard = backbone._shards[0]
        if form == "npy":
            assert isinstance(shard, np.memmap)
        elif Path("/proc/self/maps").is_file():
            assert str(tmp_path / form / "scores-00000.safetensors") in Path("/proc/self/maps").read_text()


# --- writing ---------------------------------------------------------------------------------------------------------


def spoiled(value: float) -> Callable[[Queries], Scores]:
    def score(queries: Queries) -> Scores:
        log_p = hashed(queries)
        log_p[3, 5] = value
        return Scores(log_p)

    return score


@pytest.mark.parametrize(
    ("score", "complaint"),
    [
        (spoiled(torch.nan), "NaN or infinite for actor"),
        (spoiled(-torch.inf), "NaN or infinite for actor"),
        (lambda q: Scores(hashed(q)[:, 1:]), "one column per entity: (16, 12), not (16, 11)"),
        (lambda q: Scores(hashed(q)[1:]), "one row per query"),
        (lambda q: Scores(hashed(q), torch.full((len(q),), 1.5)), "between 0 and 1"),
        (lambda q: Scores(hashed(q), torch.zeros(3)), "16 numbers between 0 and 1"),
        (lambda q: Scores(hashed(q), torch.zeros(16) if len(q) == 16 else None), "for all or for none"),
    ],
)
def test_scores_that_cannot_be_used_are_refused_and_leave_nothing_after(
    score: Callable[[Queries], Scores], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(BackboneError, match=re.escape(complaint)):
        write_scores(tmp_path / "scores", small(), score, batch=16)
    assert list(tmp_path.iterdir()) == []


def test_a_query_is_not_added_twice(tmp_path: Path) -> None:
    queries = distinct(small()).take(slice(0, 4))

    def twice(writer: ScoreWriter) -> None:
        writer.add(queries, hashed(queries))
        writer.add(queries.take(slice(3, 4)), hashed(queries)[3:])

    with pytest.raises(BackboneError, match="two rows of scores for actor"), score_writer(tmp_path / "s", small()) as w:
        twice(w)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("actor", 12), ("relation", 8), ("step", -1), ("actor", -1)])
def test_queries_with_ids_of_other_data_are_refused(name: str, value: int, tmp_path: Path) -> None:
    queries = distinct(small()).take(slice(0, 4))
    wrong = replace(queries, **{name: torch.full((4,), value)})
    with pytest.raises(BackboneError, match=f"{name} outside"), score_writer(tmp_path / "s", small()) as writer:
        writer.add(wrong, hashed(queries).numpy())


def test_nothing_at_all_is_no_backbone(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="no scores were added"), score_writer(tmp_path / "s", small()):
        pass


def test_scores_are_not_overwritten(folder: Path) -> None:
    with pytest.raises(RunError, match="exists already"):
        write_scores(folder, small(), outside)


@pytest.mark.parametrize("wrong", [{"form": "pickle"}, {"history": "sideways"}])
def test_unknown_forms_and_histories_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong.values()))):
        write_scores(tmp_path / "s", small(), outside, **wrong)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_query_that_is_not_there_is_named(folder: Path) -> None:
    train = Queries.of(small().train).take(slice(0, 1))
    named = f"actor {int(train.actor)} under directed relation {int(train.relation)} at step {int(train.step)}"
    with pytest.raises(NotFoundError, match=re.escape(f"{folder} holds no scores for {named}")):
        load_backbone(folder).score(train, Past(small().events))


def test_a_relation_beyond_the_last_is_not_taken_for_another_actors(folder: Path) -> None:
    queries, past = asked()
    there = queries.take((queries.actor > 0).nonzero()[0])
    beyond = Queries(there.actor - 1, there.relation + 8, there.step)
    with pytest.raises(NotFoundError, match=f"directed relation {int(beyond.relation)}"):
        load_backbone(folder).score(beyond, past)


def test_scores_of_other_data_are_refused(folder: Path) -> None:
    settings = StoredSettings(str(folder))
    assert Stored.fit(small(), settings).settings == settings
    other = [
        dataset_of(random_log(5, n=300)),
        replace(small(), valid_start=small().valid_start + 1),
        dataset_of(random_log(4, n=300, n_entities=13)),
    ]
    for dataset in other:
        with pytest.raises(BackboneError, match=f"other data than {dataset.name}, or for another split"):
            Stored.fit(dataset, settings)
    with pytest.raises(BackboneError, match="12 entities under 4 relations, and the data has 13 and 4"):
        load_backbone(folder).score(asked()[0], Past(other[-1].events))


def test_rolling_scores_are_not_passed_off_as_frozen_ones(folder: Path, tmp_path: Path) -> None:
    dataset, (queries, past) = small(), asked()
    frozen = Past(dataset.events, dataset.test_start)
    with pytest.raises(BackboneError, match="of a rolling history, and a frozen one was asked for"):
        load_backbone(folder).score(queries, frozen)
    write_scores(tmp_path / "frozen", dataset, outside, history="frozen")
    assert torch.equal(load_backbone(tmp_path / "frozen").score(queries, frozen).log_p, hashed(queries))
    with pytest.raises(BackboneError, match="of a frozen history"):
        load_backbone(tmp_path / "frozen").score(queries, past)


def test_a_folder_must_be_named() -> None:
    with pytest.raises(SettingsError, match="folder=PATH"):
        Stored.fit(small())


def test_a_backbone_of_another_kind_holds_no_scores(tmp_path: Path) -> None:
    Hri.fit(small()).save(tmp_path / "hri")
    with pytest.raises(RunError, match="holds no scores"):
        Stored.fit(small(), StoredSettings(str(tmp_path / "hri")))
    with pytest.raises(RunError, match="no saved model"):
        Stored.fit(small(), StoredSettings(str(tmp_path)))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def without_a_column(path: Path) -> None:
    if path.suffix == ".npy":
        np.save(path, np.zeros((16, 11), dtype=np.float32))
    else:
        write_tensors(path, {"log_p": torch.zeros(16, 11)})


def of_whole_numbers(path: Path) -> None:
    if path.suffix == ".npy":
        np.save(path, np.zeros((16, 12), dtype=np.int64))
    else:
        write_tensors(path, {"log_p": torch.zeros(16, 12, dtype=torch.int64)})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spoil", [Path.unlink, cut, without_a_column, of_whole_numbers])
def test_a_spoiled_shard_is_named(spoil: Callable[[Path], None], form: str, tmp_path: Path) -> None:
    write_scores(tmp_path / "scores", small(), outside, batch=16, form=form)
    shard = tmp_path / "scores" / f"scores-00001.{form}"
    spoil(shard)
    with pytest.raises(RunError, match=re.escape(str(shard))):
        load_backbone(tmp_path / "scores")


def test_a_number_that_turned_into_nan_on_disk_is_noticed(tmp_path: Path) -> None:
    write_scores(tmp_path / "scores", small(), outside, batch=16, form="npy")
    shard = tmp_path / "scores" / "scores-00000.npy"
    values = np.load(shard)
    values[2, 2] = np.nan
    np.save(shard, values)
    queries = distinct(small())
    with pytest.raises(BackboneError, match=re.escape(f"{tmp_path / 'scores'} are NaN or infinite for actor")):
        load_backbone(tmp_path / "scores").score(queries, Past(small().events))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("entities = 12", "entities = 11"),
        ("entities = 12", 'entities = "many"'),
        ("format = 1", "format = 2"),
        ('form = "safetensors"', 'form = "../../etc"'),
        ('history = "rolling"', ""),
        ("rows = [16,", "rows = [15,"),
        ("rows = [16,", "rows = [-16,"),
        ("[scores]", "[other]"),
    ],
)
def test_a_config_that_was_edited_is_refused(old: str, new: str, folder: Path) -> None:
    path = folder / "config.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BridgeMemError):
        load_backbone(folder).score(*asked())


# --- the example in the documents ------------------------------------------------------------------------------------


class StandIn:
    """What the example asks of a PyKEEN model: predict_t of (head, relation) and predict_h of (relation, tail)."""

    def predict_t(self, asked: Tensor) -> Tensor:
        head, relation = asked.T
        return torch.cos(head[:, None] + 5.0 * relation[:, None] + torch.arange(12))

    def predict_h(self, asked: Tensor) -> Tensor:
        relation, tail = asked.T
        return torch.sin(tail[:, None] + 3.0 * relation[:, None] + torch.arange(12))


def test_the_adapter_for_pykeen_in_the_documents_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not DOCUMENT.is_file():
        pytest.skip("needs docs/ of the repository")
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (adapter,) = [block for block in blocks if "predict_t" in block]
    assert "pykeen." not in adapter
    program = tmp_path / "adapter.py"
    program.write_text(adapter, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    dataset, model = small(), StandIn()
    runpy.run_path(str(program), {"dataset": dataset, "model": model})

    queries, past = asked()
    found = load_backbone(tmp_path / "pykeen-scores").score(queries, past).log_p
    assert len(found) == 2 * len(dataset.test)
    test = dataset.test
    ids = {name: torch.from_numpy(getattr(test, name).astype(np.int64)) for name in ("subject", "relation", "object")}
    tails = model.predict_t(torch.stack([ids["subject"], ids["relation"]], dim=1)).log_softmax(1)
    heads = model.predict_h(torch.stack([ids["relation"], ids["object"]], dim=1)).log_softmax(1)
    assert torch.equal(found[0::2], tails.half().float())
    assert torch.equal(found[1::2], heads.half().float())


def test_the_loop_in_the_documents_writes_the_same_as_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    if not DOCUMENT.is_file():
        pytest.skip("needs docs/ of the repository")
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (loop,) = [block for block in blocks if "score_writer" in block]
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    program = tmp_path / "own" / "loop.py"
    program.write_text(loop, encoding="utf-8")

    def my_model(actor: Tensor, relation: Tensor, step: Tensor) -> Tensor:
        return hashed(Queries(actor, relation, step))

    runpy.run_path(str(program), {"dataset": small(), "my_model": my_model})
    queries, past = asked()
    found = load_backbone(tmp_path / "own" / "scores").score(queries, past).log_p
    assert torch.equal(found, load_backbone(folder).score(queries, past).log_p)


def test_scores_may_have_the_name_of_their_model(tmp_path: Path) -> None:
    dataset = small()
    write_scores(tmp_path / "scores", dataset, outside, name="my model")
    run = bm.Forecaster(tmp_path / "scores", residual="bridgemem", settings=SMALL_READER).fit(dataset)
    saved = bm.Forecaster.load(run.save(tmp_path / "run"))
    for made in (run, saved):
        rows = [row[0] for row in made.evaluate("test").table().rows]
        assert rows[-2:] == ["my model", "my model + bridgemem"]
    for name in ("cenet", "two\nlines"):
        with pytest.raises(BackboneError, match="name is what tables call your model"):
            write_scores(tmp_path / "other", dataset, outside, name=name)
    assert not (tmp_path / "other").exists()
