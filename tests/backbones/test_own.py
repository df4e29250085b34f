"""Models of one's own: any callable or scorer as a backbone, registered classes, and what is said of mistakes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch

import bridgemem as bm
from bridgemem.backbones import REGISTERED, backbone_names, list_backbones, load_backbone
from bridgemem.backbones.own import from_file, in_file, own_backbone, wrapped
from bridgemem.backbones.scorer import Scores, score_queries
from bridgemem.errors import BackboneError, NotFoundError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import small_world

QUICK = {"residual": "bridgemem", "settings": {"width": 8, "hidden": 8, "max_epochs": 1}}
ALONE: dict[str, Any] = {**QUICK, "default": False}


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(REGISTERED)
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


@pytest.fixture(scope="module")
def world() -> Dataset:
    return small_world().dataset


def first_ids(n_entities: int) -> Any:
    def first_ids_first(actor: np.ndarray, relation: np.ndarray, step: np.ndarray) -> Any:
        return -np.tile(np.arange(float(n_entities)), (len(actor), 1))

    return first_ids_first


class Net(torch.nn.Module):
    """A network that is made from the data, with dropout; it takes tensors."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        assert data.test_start is None, "test is not shown to a model that trains itself"
        self.entity = torch.nn.Embedding(data.events.n_entities, 4)
        self.relation = torch.nn.Embedding(2 * data.events.n_relations, 4)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.entity(actor) * self.relation(relation)) @ self.entity.weight.T


class Last(bm.Scorer):
    """Reads the past: a scorer as the protocol has it."""

    name = "last"

    def score(self, queries: Queries, past: Past) -> Any:
        return torch.log1p(queries.actor[:, None] + torch.arange(past.events.n_entities)).float()


class Table(bm.Backbone):
    """One score for each entity, which is learned: a backbone without settings."""

    name: ClassVar[str] = "table"

    def __init__(self, score: torch.Tensor) -> None:
        self.table = score

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Any) -> Table:
        count = np.bincount(dataset.train.object, minlength=dataset.events.n_entities)
        return cls(torch.from_numpy(np.log(count + 1.0)))

    def score(self, queries: Queries, past: Past) -> torch.Tensor:
        return self.table.repeat(len(queries), 1)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"table": self.table}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, torch.Tensor]) -> Table:
        return cls(tensors["table"])


def ask(model: Any, data: Dataset) -> Scores:
    return score_queries(own_backbone(model, data), Queries.of(data.test), Past(data.events))


def test_a_callable_is_asked_with_numpy_arrays_of_ids(world: Dataset) -> None:
    seen: list[Any] = []

    def model(actor: Any, relation: Any, step: Any) -> Any:
        seen.extend([actor, relation, step])
        return np.zeros((len(actor), world.events.n_entities))

    ask(model, world)
    asked = Queries.of(world.test)
    for given, wanted in zip(seen, (asked.actor, asked.relation, asked.step), strict=True):
        assert isinstance(given, np.ndarray)
        assert given.dtype == np.int64
        np.testing.assert_array_equal(given, wanted.numpy())


def test_a_class_is_made_with_the_data_and_a_module_is_asked_with_tensors_in_eval_mode(world: Dataset) -> None:
    made = own_backbone(Net, world)
    assert made.name == "Net"
    assert not made.model.training
    bm.check_backbone(made, world)  # twice the same: no dropout


def test_the_table_has_the_model_its_residuals_and_the_naive_rows_with_intervals(world: Dataset) -> None:
    with pytest.warns(UserWarning, match="most-frequent is above the model"):
        found = bm.evaluate(world, first_ids(world.events.n_entities), **ALONE)
    rows = {row[0]: row for row in found.table().rows}
    assert list(rows)[-2:] == ["first_ids_first", "first_ids_first + bridgemem"]
    assert {"most-frequent", "most-recent", "recurrence", "recurrence-dyadic"} < rows.keys()
    assert all("[" in row[-1] for name, row in rows.items() if "bridgemem" not in name)
    frame = found.to_frame()
    assert len(frame["mrr"]) == len(found)
    # the row of the model is what its scores give, ranked here by other code
    answer, entity = Queries.of(world.test).answer.numpy(), found.records[0]
    raw = next(r for r in found if (r.method, r.filter, r.backbone) == ("backbone", "raw", entity.backbone))
    assert raw.mrr == pytest.approx(np.mean(1.0 / (answer + 1)), abs=1e-12)


def test_scorers_backbones_and_classes_of_them_are_measured_alike(world: Dataset) -> None:
    for model, name in ((Last(), "last"), (Table, "table"), (Table.fit(world), "table")):
        rows = [row[0] for row in bm.evaluate(world, model, split="valid", **ALONE).table().rows]
        assert rows[-2].split()[0] == name


def test_a_backbone_without_settings_is_saved_with_the_name_of_its_class_and_a_digest(
    world: Dataset, tmp_path: Path
) -> None:
    run = bm.Forecaster(Table, **QUICK).fit(world).save(tmp_path / "run")
    text = (run / "backbone" / "config.toml").read_text()
    assert 'class = "Table"' in text
    assert "digest" in text
    with pytest.raises(NotFoundError, match=r"'table' \(class Table\).*a folder holds no code; give its class again"):
        bm.Forecaster.load(run).forecast(0, 0)
    bm.register(Table)
    wanted = bm.Forecaster(Table, **QUICK).fit(world).forecast(0, 0, top=3)
    assert [c.name for c in bm.Forecaster.load(run).forecast(0, 0, top=3)] == [c.name for c in wanted]


def test_other_source_code_than_that_which_saved_is_warned_of(world: Dataset, tmp_path: Path) -> None:
    bm.register(Table)
    Table.fit(world).save(tmp_path / "saved")
    load_backbone(tmp_path / "saved")
    config = tmp_path / "saved" / "config.toml"
    before = config.read_text()
    digest = before.partition('digest = "')[2][:16]
    config.write_text(before.replace(digest, "0" * 16))
    with pytest.warns(UserWarning, match="saved by a different version of Table"):
        load_backbone(tmp_path / "saved")


def test_a_folder_that_names_code_never_imports_it(world: Dataset, tmp_path: Path) -> None:
    Table.fit(world).save(tmp_path / "saved")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    config = tmp_path / "saved" / "config.toml"
    for name in (f"{tmp_path}/evil.py:Evil", "evil:Evil"):
        config.write_text(f'[backbone]\nname = "{name}"\nclass = "{name}"\n\n[settings]\n')
        before = set(sys.modules)
        with pytest.raises(NotFoundError, match="a folder holds no code"):
            load_backbone(tmp_path / "saved")
        assert not [module for module in set(sys.modules) - before if "evil" in module]


def test_registered_models_are_known_by_name(world: Dataset) -> None:
    assert bm.register(Table) is Table
    assert "table" in backbone_names()
    assert next(one for one in list_backbones() if one.name == "table").package == "registered"
    assert bm.Forecaster("table", **QUICK).fit(world).parts.config.backbone == "table"


def test_a_registered_function_is_fitted_saved_and_loaded_by_its_name(world: Dataset, tmp_path: Path) -> None:
    bm.register(first_ids(world.events.n_entities), name="ids")
    assert "ids" in backbone_names()
    model = bm.Forecaster("ids", **QUICK).fit(world)
    assert model.parts.backbone_note().get("fingerprint") is None  # nobody saw what it was trained on
    wanted = model.evaluate("valid")
    run = model.save(tmp_path / "run")
    assert bm.Forecaster.load(run).evaluate("valid").mrr("backbone") == wanted.mrr("backbone")
    REGISTERED.clear()
    with pytest.raises(NotFoundError, match=r"called 'ids' \(class first_ids_first\)"):
        bm.Forecaster.load(run).forecast(0, 0)


class Taken(Table):
    name: ClassVar[str] = "hri"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Taken, "'hri' is taken"),
        (Net, "does not derive from bridgemem.Backbone.*register a trained instance"),
        (3, r"int cannot be called; your model must take \(actor, relation, step\)"),
    ],
    ids=["built-in name", "plain class", "number"],
)
def test_what_cannot_be_registered_is_refused(model: Any, said: str) -> None:
    with pytest.raises(BackboneError, match=said):
        bm.register(model)


def embedding(actor: Any, relation: Any, step: Any) -> Any:
    return torch.nn.functional.embedding(actor, torch.zeros(3, 3))


def lost(actor: Any, relation: Any, step: Any) -> Any:
    return {}["missing"]


class Breaks(Table):
    """Has a bug in its training."""

    name: ClassVar[str] = "breaks"

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Any) -> Table:
        return torch.zeros(3) @ torch.zeros(4)  # type: ignore[return-value]


class OneWay(Net):
    """Has no ids for the relations that ask for the subject."""

    def __init__(self, data: Dataset) -> None:
        super().__init__(data)
        self.relation = torch.nn.Embedding(data.events.n_relations, 4)


class Normalised(torch.nn.Module):
    """Stays in training mode, whatever is asked of it."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(data.events.n_relations * 2, data.events.n_entities)
        self.norm = torch.nn.BatchNorm1d(data.events.n_entities)

    def eval(self) -> Self:
        return self

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.norm(self.table(relation))


class NoForward(torch.nn.Module):
    def __init__(self, data: Dataset) -> None:
        super().__init__()


class NoData:
    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda a, r, s: np.full((len(a), 30), np.nan), "own-model returned a score that is NaN or infinite"),
        (lambda a, r, s: np.zeros((len(a), 7)), r"shape \(1, 7\) instead of \(1, 30\), queries by entities"),
        (lambda a, r, s: np.zeros(len(a)), r"shape \(1,\) instead of"),
        (lambda a, r, s: [[0.0] * 30 for _ in a], "returned list from score"),
        (lambda a, r, s: np.full((len(a), 30), 1 / 30), "returned probabilities.*return their logarithm"),
        (lambda a, r, s: np.random.default_rng().random((len(a), 30)), "the same batch gave different scores"),
        (lambda a: a, r"takes \(a\); it must take \(actor, relation, step\)"),
        (embedding, "plain functions get NumPy arrays, torch.from_numpy makes tensors"),
        (lost, r"lost cannot score the queries: KeyError: 'missing' \(test_own.py, line \d+\)"),
        (
            Normalised,
            r"cannot score the queries: ValueError.*; this is batch normalisation in training mode, so call .eval",
        ),
        (Breaks, r"breaks failed: RuntimeError: .* \(test_own.py, line \d+\)"),
        (OneWay, r"IndexError: .*; ids are 0..29 for entities and 0..15 for relations, of which those from 8 on ask"),
        (NoForward, "NoForward cannot be called; your model must take"),
        (NoData, r"NoData is constructed as NoData\(data\)"),
        (3, "int cannot be called"),
    ],
    ids=[
        "nan",
        "width",
        "flat",
        "list",
        "probabilities",
        "random",
        "one",
        "tensor",
        "raises",
        "normalised",
        "train",
        "one way",
        "no forward",
        "init",
        "number",
    ],
)
def test_a_natural_mistake_is_one_sentence(model: Any, said: str, world: Dataset) -> None:
    assert world.events.n_entities == 30
    with pytest.raises(BackboneError, match=said) as caught:
        bm.evaluate(world, model, **ALONE)
    assert "\n" not in str(caught.value)


def test_large_logits_are_not_taken_for_scores_that_depend_on_the_batch(world: Dataset) -> None:
    """A product of a batch and that of a single row differ in the last bits: of 1000, by more than 1e-4."""

    def rounded(actor: np.ndarray, relation: np.ndarray, step: np.ndarray) -> Any:
        return 5000.0 + np.tile(np.arange(30.0), (len(actor), 1)) + 1e-3 * (len(actor) > 1)

    def pooled(actor: np.ndarray, relation: np.ndarray, step: np.ndarray) -> Any:
        return 5000.0 + np.tile(np.arange(30.0), (len(actor), 1)) + 1.0 * (len(actor) > 1)

    bm.check_backbone(wrapped(rounded)(), world)
    with pytest.raises(BackboneError, match="depend on the other queries of the batch"):
        bm.check_backbone(wrapped(pooled)(), world)


def test_a_model_that_only_scores_cannot_be_cross_fitted(world: Dataset) -> None:
    with pytest.raises(bm.BridgeMemError, match=r"cross_fit trains the backbone again.*leave cross_fit out"):
        bm.evaluate(world, first_ids(30), learned_settings={"cross_fit": 0.3}, settings=QUICK["settings"])


def test_a_name_of_a_built_in_backbone_is_not_taken_over() -> None:
    with pytest.raises(BackboneError, match="'recurrence' is the name of a built-in backbone"):
        wrapped(first_ids(3), "recurrence")


def test_a_file_is_told_from_names_and_folders(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    assert in_file("my.py:Model")
    assert in_file("my.py")
    for text in ("hri", "runs/mine", str(tmp_path / "folder.py"), "my-model"):
        assert not in_file(text)


def test_what_a_file_imports_may_lie_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "sizes_of_mine.py").write_text("SIZE = 3\n")
    (tmp_path / "torch.py").write_text("from sizes_of_mine import SIZE\n\nclass Model:\n    size = SIZE\n")
    assert from_file(f"{tmp_path}/torch.py:Model").size == 3
    assert sys.modules["torch"] is torch


@pytest.mark.parametrize(
    ("text", "spec", "said"),
    [
        (None, ":M", r"there is no file .*mine.py; `bridgemem new-backbone .*mine.py` writes one"),
        ("class Model: ...", ":Modl", r"mine.py has no 'Modl', as in .*mine.py:Model; it defines Model\."),
        ("class Model: ...", "", r"name the class in .*mine.py too, as in .*mine.py:Model"),
        ("x = 1", ":Model", "it defines no class or function"),
        ("def broken(:", ":Model", r"mine.py cannot be imported: SyntaxError: .*\(line 1\)"),
        ("\nimport nowhere_at_all", ":M", r"ModuleNotFoundError: No module named 'nowhere_at_all' \(mine.py, line 2\)"),
        ("raise SystemExit(3)", ":M", "mine.py cannot be imported: SystemExit: 3"),
    ],
    ids=["no file", "no class", "not named", "empty", "syntax", "import", "exit"],
)
def test_a_file_that_cannot_be_used_is_one_sentence(text: str | None, spec: str, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(bm.BridgeMemError, match=said):
        from_file(f"{tmp_path}/mine.py{spec}")
