"""Stored: the scores of any outside model, written once into a folder of shards and read from there by memory map."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones import BACKBONES
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import Scores, as_scores
from bridgemem.config import Count, Declared, HistoryMode, Range, write_toml
from bridgemem.errors import BackboneError, NotFoundError, RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import STEP_BITS, code
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.files import link_or_copy
from bridgemem.storage.schema import as_settings
from bridgemem.storage.tensors import TensorSpec, check_tensors, load_tensors, read_tensors, write_tensors
from bridgemem.storage.whole import whole_folder
from bridgemem.training.checkpoint import Training

FORMAT = 1
Form = Literal["safetensors", "npy"]
KEYS = ("actor", "relation", "step")
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class StoredSettings(Declared):
    """folder: where `write_scores` put the scores."""

    folder: str = ""


@dataclass(frozen=True)
class Store(Declared):
    """What a folder of scores holds, as its config.toml says.

    train, known: fingerprints of the train split and of train + validation. rows: how many queries each shard holds.
    name: what tables call the model that made them; "stored" where it has none.
    """

    train: str
    known: str
    entities: Count
    relations: Count
    history: HistoryMode
    form: Form
    rows: tuple[Count, ...]
    format: Annotated[int, Range(ge=FORMAT, le=FORMAT)] = FORMAT
    name: str = ""

    def shard(self, folder: Path, number: int) -> Path:
        return folder / f"scores-{number:05d}.{self.form}"

    def codes(self, queries: Queries) -> Tensor:
        """One number for (actor, directed relation, step), int64 [n]."""
        return code(queries.actor.long() * (2 * self.relations) + queries.relation, queries.step)


class ScoreWriter:
    """Adds scores to a folder, a shard a call; `score_writer` opens one and puts the folder in place when all is in."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.rows: list[int] = []
        self.index: dict[str, list[Tensor]] = {name: [] for name in (*KEYS, "uncertainty")}

    def add(self, queries: Queries, log_p: Any, uncertainty: Any = None) -> None:
        """Write the scores of queries that were not added before.

        log_p float [n, E], a tensor or an array: log scores of every entity, finite, higher is likelier.
        uncertainty float [n] in [0, 1]: for all queries of the folder, or for none.
        """
        asked = queries.unanswered().to("cpu")
        scores = torch.as_tensor(log_p).detach().cpu()
        self._check(asked, scores)
        if uncertainty is not None:
            u = torch.as_tensor(uncertainty).detach().cpu().float()
            if u.shape != (len(asked),) or not ((u >= 0) & (u <= 1)).all():
                raise BackboneError(f"uncertainty must hold {len(asked)} numbers between 0 and 1, one a query.")
            self.index["uncertainty"].append(u)
        scores = (scores if _dtype(scores) in FLOATS else scores.float()).contiguous()
        path = self.store.shard(self.folder, len(self.rows))
        if self.store.form == "npy":
            np.save(path, scores.numpy(), allow_pickle=False)
        else:
            write_tensors(path, {"log_p": scores})
        self.rows.append(len(asked))
        for name in KEYS:
            self.index[name].append(getattr(asked, name).long())

    def _check(self, asked: Queries, scores: Tensor) -> None:
        expected = (len(asked), self.store.entities)
        if not len(asked) or tuple(scores.shape) != expected:
            raise BackboneError(
                f"scores must have one row per query and one column per entity: {expected}, not {tuple(scores.shape)}."
            )
        bounds = (self.store.entities, 2 * self.store.relations, 1 << STEP_BITS)
        for name, bound in zip(KEYS, bounds, strict=True):
            ids = getattr(asked, name)
            if not (ids.shape == (len(asked),) and int(ids.min()) >= 0 and int(ids.max()) < bound):
                raise BackboneError(
                    f"the queries hold a value of {name} outside 0..{bound - 1}; use the data set's ids."
                )
        refuse_infinite(scores, asked, "the scores given")

    def finish(self) -> None:
        """Write the index and the config, which make the shards a backbone."""
        index = {name: torch.cat(parts) for name, parts in self.index.items() if parts}
        if not self.rows:
            raise BackboneError("no scores were added; add those of the validation and test queries.")
        if len(index.get("uncertainty", index["step"])) != len(index["step"]):
            raise BackboneError("some queries came with an uncertainty and some without; give it for all or for none.")
        store = Store(**{**asdict(self.store), "rows": tuple(self.rows)})
        _order(store, index)
        config = {"backbone": {"name": Stored.name}, "settings": asdict(Stored.default), "scores": asdict(store)}
        (self.folder / "config.toml").write_text(write_toml(config), encoding="utf-8")
        write_tensors(self.folder / "weights.safetensors", index)


@contextmanager
def score_writer(
    folder: Path | str,
    dataset: Dataset,
    form: Form = "safetensors",
    history: HistoryMode = "rolling",
    *,
    name: str = "",
) -> Iterator[ScoreWriter]:
    """A writer of scores for a data set; the folder appears when the block ends well, and else not at all."""
    if name in BACKBONES or not isinstance(name, str) or any(not letter.isprintable() for letter in name):
        raise BackboneError(f"name is what tables call your model, and not that of a built-in one, as {name!r} is.")
    events = dataset.events
    store = Store(
        dataset.train.fingerprint,
        dataset.known.fingerprint,
        events.n_entities,
        events.n_relations,
        history,
        form,
        rows=(),
        name=name,
    )
    with whole_folder(Path(folder)) as aside:
        writer = ScoreWriter(aside, store)
        yield writer
        writer.finish()


def write_scores(
    folder: Path | str,
    dataset: Dataset,
    score: Callable[[Queries], Any],
    splits: Sequence[str] | None = None,
    batch: int = 1024,
    form: Form = "safetensors",
    history: HistoryMode = "rolling",
    progress: Progress = SILENT,
    *,
    name: str = "",
) -> None:
    """Ask an outside model every query of the splits once, ordered by step, and keep its scores in a new folder.

    splits are validation and test where none are named, or validation alone where there is no test.

    score takes queries and returns `Scores`, or log scores as a tensor or array [n, E]; it must look at facts before
    each query's step alone, which cannot be checked afterwards. history says how far it looks: "rolling", to that step;
    "frozen", to the start of the split. name is what tables call the model.
    """
    with score_writer(folder, dataset, form, history, name=name) as writer:
        asked = distinct(dataset, splits)
        with progress.task("scoring", total=len(asked)) as advance:
            for part in asked.batches(batch):
                scores = as_scores(score(part), name or "the model", "cpu")
                writer.add(part, scores.log_p, scores.uncertainty)
                advance(len(part))


def distinct(dataset: Dataset, splits: Sequence[str] | None = None) -> Queries:
    """Each (actor, directed relation, step) that splits ask about once, ordered by step, without answers."""
    evaluated = ("valid",) if dataset.test_start is None else ("valid", "test")
    parts = [Queries.of(dataset.split(name)) for name in splits or evaluated]
    columns = [torch.cat([getattr(part, name) for part in parts]) for name in ("step", "relation", "actor")]
    step, relation, actor = torch.stack(columns).unique(dim=1)
    return Queries(actor, relation, step)


def refuse_infinite(scores: Tensor, queries: Queries, whose: str) -> None:
    """Raise BackboneError where a score is no finite number, naming the first such query."""
    bad = (~torch.isfinite(scores)).any(1).nonzero().flatten()
    if len(bad):
        raise BackboneError(
            f"{whose} are NaN or infinite for {_named(queries, int(bad[0]))}; give a candidate that is ruled out a "
            "low score instead, such as the log of 1e-12."
        )


def _named(queries: Queries, row: int) -> str:
    actor, relation, step = (int(getattr(queries, name)[row]) for name in KEYS)
    return f"actor {actor} under directed relation {relation} at step {step}"


def _order(store: Store, index: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The codes of all queries in ascending order, and the row of each; int64 [n] both."""
    queries = Queries(*(index[name] for name in KEYS))
    codes, rows = store.codes(queries).sort()
    again = (codes[1:] == codes[:-1]).nonzero().flatten()
    if len(again):
        raise BackboneError(
            f"there are two rows of scores for {_named(queries, int(rows[again[0]]))}; add each query once."
        )
    return codes, rows


class Stored(Backbone):
    """Scores that were computed elsewhere, looked up by (actor, directed relation, step).

    There is nothing to train: `fit` opens the folder and checks that it belongs to the data. The folder is a saved
    backbone as it is, and is linked, not copied, into the runs that use it. Shards stay on disk, whatever the device.
    """

    name: ClassVar[str] = "stored"
    retrained: ClassVar[bool] = False
    reads_past: ClassVar[bool] = False
    default: ClassVar[StoredSettings] = StoredSettings()

    def __init__(self, settings: StoredSettings, folder: Path, store: Store, index: dict[str, Tensor]) -> None:
        self.settings, self.folder, self.store, self.index = settings, folder, store, index
        if store.name:
            self.name = store.name  # type: ignore[misc]  # of the model that made them, for tables and sentences
        n = sum(store.rows)
        specs = {**dict.fromkeys(KEYS, TensorSpec((n,), torch.int64)), "uncertainty": TensorSpec((n,))}
        try:
            check_tensors(index, {name: spec for name, spec in specs.items() if name in KEYS or name in index})
        except ValueError as problem:
            raise BackboneError(
                f"the index of {folder} has not one entry for each of {n} rows ({problem}); write the scores again."
            ) from None
        self._codes, self._rows = _order(store, index)
        self._starts = torch.tensor([0, *store.rows]).cumsum(0)
        # mapped now and read later: a folder that is replaced or removed meanwhile changes nothing
        self._shards = [_map(store, folder, number) for number in range(len(store.rows))]

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        if not settings.folder:
            raise SettingsError(
                "name the folder that holds the scores: as the backbone itself, or as the setting folder=PATH of it."
            )
        opened = cls.load(Path(settings.folder))
        opened.check(dataset)
        return cls(settings, opened.folder, opened.store, opened.index)

    def check(self, dataset: Dataset) -> None:
        """Raise BackboneError if the scores were written for other data, or for another split of it."""
        found = (dataset.events.n_entities, dataset.events.n_relations, dataset.train.fingerprint)
        if (*found, dataset.known.fingerprint) != (
            self.store.entities,
            self.store.relations,
            self.store.train,
            self.store.known,
        ):
            raise BackboneError(
                f"{self.folder} holds scores for other data than {dataset.name}, or for another split of it; write "
                "scores for this data."
            )

    def score(self, queries: Queries, past: Past) -> Scores:
        store, events = self.store, past.events
        if (events.n_entities, events.n_relations) != (store.entities, store.relations):
            raise BackboneError(
                f"{self.folder} holds scores of {store.entities} entities under {store.relations} relations, and the "
                f"data has {events.n_entities} and {events.n_relations}; write scores for this data."
            )
        history = "rolling" if past.frozen_at is None else "frozen"
        if history != store.history:
            raise BackboneError(
                f"{self.folder} holds scores of a {store.history} history, and a {history} one was asked for; write "
                "scores for it into another folder."
            )
        asked = queries.unanswered().to("cpu")
        rows = self._find(asked)
        log_p = self._read(rows)
        refuse_infinite(log_p, asked, f"scores in {self.folder}")
        u = self.index.get("uncertainty")
        device = queries.actor.device
        return Scores(log_p.to(device), None if u is None else u[rows].to(device))

    def _find(self, asked: Queries) -> Tensor:
        """The row of each query, int64 [n]."""
        codes = self.store.codes(asked)
        place = torch.searchsorted(self._codes, codes).clamp(max=len(self._codes) - 1)
        missing = (self._codes[place] != codes) | (asked.relation >= 2 * self.store.relations)
        if missing.any():
            first = _named(asked, int(missing.nonzero()[0]))
            raise NotFoundError(
                f"{self.folder} holds no scores for {first}; write those of every query that is to be asked."
            )
        return self._rows[place]

    def _read(self, rows: Tensor) -> Tensor:
        """The scores in given rows, float32 or float64 [n, E]; of the shards only these are read."""
        shard_of = torch.searchsorted(self._starts, rows, right=True) - 1
        parts, places = [], []
        for number in shard_of.unique().tolist():
            own = (shard_of == number).nonzero().flatten()
            parts.append(_take(self._shards[number], rows[own] - self._starts[number]))
            places.append(own)
        widest = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
        log_p = torch.empty((len(rows), self.store.entities), dtype=widest)
        for own, part in zip(places, parts, strict=True):
            log_p[own] = part.to(widest)
        return log_p

    def tensors(self) -> dict[str, Tensor]:
        return self.index

    @classmethod
    def restore(cls, settings: StoredSettings, tensors: dict[str, Tensor]) -> Self:
        return cls.load(Path(settings.folder))

    def save(self, folder: Path) -> None:
        """The same shards under another name, and the settings as they are here."""
        config = {"backbone": {"name": Stored.name}, "settings": asdict(self.settings), "scores": asdict(self.store)}
        with whole_folder(folder, replace=True) as aside:
            link_or_copy(self.folder, aside)
            (aside / "config.toml").unlink()
            (aside / "config.toml").write_text(write_toml(config), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        config, index = load_tensors(folder)
        if not isinstance(config.get("scores"), dict):
            raise RunError(f"{folder} holds no scores; `write_scores` makes such a folder.")
        store = as_settings(Store, config["scores"], f"{folder}/config.toml")
        settings = as_settings(StoredSettings, config.get("settings", {}), f"{folder}/config.toml")
        return cls(settings, Path(folder), store, index)


def _dtype(values: Tensor | np.ndarray) -> str:
    """The name of a dtype, which torch and numpy share."""
    return str(values.dtype).removeprefix("torch.")


def _map(store: Store, folder: Path, number: int) -> Tensor | np.ndarray:
    """A shard mapped into memory, float [rows, E], with nothing of it read yet."""
    path, expected = store.shard(folder, number), (store.rows[number], store.entities)
    shard = _map_npy(path) if store.form == "npy" else read_tensors(path).get("log_p")
    if shard is None or tuple(shard.shape) != expected or _dtype(shard) not in FLOATS:
        raise RunError(f"{path} does not hold scores of shape {expected}; write the scores again.")
    return shard


def _map_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RunError(f"{path} is missing; write the scores again.") from None
    except (OSError, ValueError, EOFError) as problem:
        raise RunError(f"{path} is damaged: {problem}.") from None


def _take(shard: Tensor | np.ndarray, rows: Tensor) -> Tensor:
    return shard[rows] if isinstance(shard, Tensor) else torch.from_numpy(shard[rows.numpy()])
