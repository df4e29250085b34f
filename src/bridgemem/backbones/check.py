"""check_backbone: the contract of a backbone as a public test that anyone can run on their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.own import IN_TRAINING, ONE_VALUE, read_at_import
from bridgemem.backbones.reads import Reads
from bridgemem.backbones.retraining import CHECK as TRAINING
from bridgemem.backbones.retraining import check_retrained, practice, trainer, with_reads
from bridgemem.backbones.scorer import Scorer, Scores, called, check_scorer, score_queries
from bridgemem.backbones.stored import Stored
from bridgemem.backbones.verdicts import MAKERS_WORD, Checked, Finding
from bridgemem.errors import BackboneError, DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past

TOLERANCE = 1e-4  # of the scale of the scores
BATCH = "alone in its batch"
FUTURE = "blind to the future"
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
REMEMBERS = "scores depend on the queries that were asked before: it remembers them"
NO_STATISTICS = "batch normalisation without running statistics, so set track_running_stats=True"


def check_backbone(
    backbone: Any,
    events: Any,
    *,
    settings: Any = None,
    retrain: bool | None = None,
    queries: int = 64,
    seed: int = 0,
    device: str = "cpu",
) -> Checked:
    """Check that a model keeps the contract of a scorer, and that it does not know the future.

    Checked: scores are finite and of the right shape; the same batch gives the same bits; order and other queries do
    not matter; nothing at or after the query's step is read from the past that is given; saving and loading changes
    nothing. A class is also trained again on data whose later part differs, which must not change earlier scores: so
    are found a table of its own that is read at the query's step, and a training on test. One that reads files of its
    own is not checkable, and one that knows later events which the data does not tell fails.

    Args:
        backbone: A name, which stands for its class, or the folder of a trained one; a class of backbones, any other
            class or function that takes the data and gives a model, or a trained model: a `Backbone`, a `Scorer`, a
            torch module or a callable on arrays (actor, relation, step). How a trained one came about cannot be
            checked, and is its maker's word.
        events: Whatever `load` takes, or an `EventLog`. The test split is not read.
        settings: Of a class of backbones.
        retrain: Whether it is trained again (default: classes and functions are; a trained `Backbone` may be).
        queries: How many are asked at most.
        seed: Of the choice of queries and of the futures that are made up.
        device: "cpu" or "cuda", where a class is trained.

    Returns:
        `Checked`: one finding for each check, shown or not checkable. `passed` is True only if all is shown.

    Raises:
        BackboneError: Something is not shown; the sentence names the leak.

    Example:
        >>> from bridgemem.backbones.recurrence import Recurrence
        >>> bm.check_backbone(Recurrence, data).word
        'pass'
        >>> bm.check_backbone(Recurrence.fit(data), data).word
        'nothing failed, 1 not checkable'
    """
    backbone = named(backbone)
    options = {"settings": settings, "retrain": retrain, "queries": queries, "seed": seed, "device": device}
    found = list(findings(backbone, events, strict=True, **options))
    return Checked(_name(backbone), tuple(found))


def examined(backbone: Any, events: Any, **options: Any) -> Checked:
    """As `check_backbone`, with what is not shown among the findings and no error."""
    backbone = named(backbone)
    return Checked(_name(backbone), tuple(findings(backbone, events, strict=False, **options)))


def findings(
    backbone: Any,
    events: Any,
    *,
    settings: Any = None,
    retrain: bool | None = None,
    queries: int = 64,
    seed: int = 0,
    device: str = "cpu",
    strict: bool = False,
) -> Iterator[Finding]:
    """The findings of `check_backbone`, one by one; strict: the first that is not shown is an error."""
    backbone = named(backbone)
    log, valid_start = _known(events)
    reads = Reads(read_at_import(backbone))
    if not len(log):
        raise DataError("check_backbone needs events to ask about; this log holds none.")
    train = trainer(backbone, settings, device=device)
    if train is None and retrain and isinstance(backbone, Backbone) and backbone.retrained:
        train = trainer(type(backbone), backbone.settings, device=device)
    if train is None or isinstance(backbone, Backbone):
        model, asked_about = backbone if isinstance(backbone, Backbone) else _scorer(backbone), log
    else:
        data, train = practice(log), reads.around(train)
        model, asked_about = train(data.without_test()), data.known
    contract = _Contract(model, asked_about, queries, seed)
    shown_past = not isinstance(model, Backbone) or model.reads_past
    for check, seen, run in contract.checks():
        if check == FUTURE and not shown_past and train is not None and retrain is not False:
            continue  # what it knows of events it has from its training, which is checked below
        try:
            with reads.watching():
                found = run() or Finding(check, True, seen)
        except BackboneError as problem:
            if strict:
                raise
            yield Finding(check, False, str(problem).rstrip("."))
            continue
        yield found
    if train is None or retrain is False:
        unknown = f"it was not trained here: that it knows nothing later is {MAKERS_WORD}"
        yield with_reads(Finding(TRAINING, None, unknown), reads)
        return
    last = check_retrained(train, log, queries=queries, seed=seed, valid_start=valid_start, reads=reads)
    if strict and last.passed is False:
        raise BackboneError(f"{called(model)}: {last.seen}.")
    yield last


class _Contract:
    """The checks of a model that is trained, each of which raises BackboneError where it does not hold."""

    def __init__(self, backbone: Scorer, events: EventLog, queries: int, seed: int) -> None:
        self.backbone, self.events = backbone, events
        self.rng = np.random.default_rng(seed)
        self.device = _device_of(backbone)
        steps = np.unique(events.step)
        if isinstance(backbone, Stored):  # which knows the queries of validation alone among these
            steps = np.intersect1d(steps, backbone.index["step"].numpy())
            if not len(steps):
                raise DataError(
                    f"{backbone.folder} holds no scores of steps before test; write those of validation too."
                )
        self.now = int(steps[len(steps) * 3 // 4])
        asked = Queries.of(events.between(self.now, self.now + 1))
        self.asked = asked.take(torch.from_numpy(self.rng.permutation(len(asked))[:queries])).to(self.device)
        self.past = Past(events, device=self.device)
        self.scores = Scores(torch.empty(0))
        self.first: list[Scores] = []  # of single queries, asked before any other
        self.norms: set[str] = set()  # batch normalisations that read the batch while it scored

    def checks(self) -> Iterable[tuple[str, str, Callable[[], Finding | None]]]:
        """The name of each check, what is said where it holds, and what carries it out."""
        n = len(self.asked)
        yield "scores", f"finite, for {n} queries of every entity", self._shape
        if not self.scores.log_p.numel():
            return  # nothing else can be checked
        yield "same batch", "the same scores a second time", self._again
        yield "order", "the same scores in another order", self._order
        yield BATCH, "the same scores without the other queries", self._alone
        yield FUTURE, "the same scores with the future deleted, permuted and made up", self._future
        if isinstance(self.backbone, Backbone):
            yield "saving", "the same scores after saving and loading", self._saved

    def _scored(self, queries: Queries, past: Past | None = None) -> Scores:
        """The scores of some queries; what fails for a query alone, and not among others, is told as what it is."""
        try:
            with _noting(self.norms):
                return score_queries(self.backbone, queries, past or self.past)
        except (BackboneError, ValueError) as problem:
            one_value = ONE_VALUE in str(problem)
            if one_value and not self.norms:  # normalised by a function, which no hook sees
                self.norms.add(IN_TRAINING)
            if one_value or (len(queries) == 1 < len(self.asked) and "NaN" in str(problem)):
                raise BackboneError(f"{self._pooled()}; it cannot score a query alone.") from None
            raise

    def _pooled(self) -> str:
        """What is said of scores that depend on other queries, with the cause where it is known."""
        cause = " and ".join(sorted(self.norms)) or "it pools the queries of its batch"
        return f"scores depend on the other queries of the batch: {cause}"

    def _shape(self) -> None:
        with suppress(BackboneError):  # which is told below
            self.first = [self._scored(self.asked.take(slice(i, i + 1))) for i in range(min(4, len(self.asked)))]
        self.scores = self._scored(self.asked)

    def _again(self) -> None:
        found = self._scored(self.asked)
        _same(self.scores, found, 0.0, "the same batch gave different scores the second time")

    def _order(self) -> None:
        order = torch.from_numpy(self.rng.permutation(len(self.asked))).to(self.device)
        shuffled = self._scored(self.asked.take(order))
        _same(_rows(self.scores, order), shuffled, TOLERANCE, "scores depend on the order of the queries")

    def _alone(self) -> None:
        n = len(self.asked)
        # halves first: statistics of the batch make finite scores of them, and none of a query alone
        halves = [slice(0, n // 2), slice(n // 2, n)] if n > 3 else []
        for part in (*halves, *(slice(i, i + 1) for i in range(min(8, n)))):
            found = self._scored(self.asked.take(part))
            _same(_rows(self.scores, part), found, TOLERANCE, self._pooled())
        for i, before in enumerate(self.first):
            _same(_rows(self.scores, slice(i, i + 1)), before, TOLERANCE, REMEMBERS)

    def _future(self) -> Finding | None:
        for what, future in other_futures(self.events, self.now, self.rng).items():
            found = self._scored(self.asked, Past(future, device=self.device))
            _same(self.scores, found, 0.0, f"scores changed when {what}: it reads the past that it is given at t")
        if isinstance(self.backbone, Backbone) and not self.backbone.reads_past:
            return Finding(FUTURE, None, f"it is not shown the past: that it reads nothing later is {MAKERS_WORD}")
        return None

    def _saved(self) -> None:
        assert isinstance(self.backbone, Backbone)
        with tempfile.TemporaryDirectory() as folder:
            self.backbone.save(Path(folder) / "saved")
            again = type(self.backbone).load(Path(folder) / "saved").to(str(self.device))
        found = score_queries(again, self.asked, self.past)
        _same(self.scores, found, 0.0, "scores changed by saving and loading")


@contextmanager
def _noting(norms: set[str]) -> Iterator[None]:
    """Note what a batch normalisation that is asked meanwhile does wrong, if it reads the statistics of the batch."""

    def note(module: nn.Module, _: Any) -> None:
        if isinstance(module, NORMS) and (module.training or module.running_mean is None):
            norms.add(NO_STATISTICS if module.running_mean is None else IN_TRAINING)

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()


def named(backbone: Any) -> Any:
    """What a text or a path stands for: a class of backbones by its name, or the trained one of a folder."""
    if not isinstance(backbone, str | Path):
        return backbone
    from bridgemem.backbones import backbone_class
    from bridgemem.backbones.trained import check_name, open_backbone

    if Path(backbone).is_dir():
        return open_backbone(Path(backbone))
    check_name(str(backbone))
    return backbone_class(str(backbone))


def _known(events: Any) -> tuple[EventLog, int | None]:
    """The events that a model may be asked about: all of a log, and of a data set those before its test.

    Of a data set also where its validation begins.
    """
    if isinstance(events, EventLog):
        return events, None
    data = events if isinstance(events, Dataset) else load(events)
    return data.known, data.valid_start


def _scorer(given: Any) -> Scorer:
    """A trained model as a scorer; a torch module and a callable on arrays are wrapped."""
    if callable(getattr(given, "score", None)) or not callable(given) or isinstance(given, type):
        check_scorer(given)
        return given
    from bridgemem.backbones.own import wrapped

    return wrapped(given)()


def _name(given: Any) -> str:
    name = getattr(given, "name", None)
    return name if isinstance(name, str) else getattr(given, "__name__", called(given))


def _device_of(backbone: Scorer) -> torch.device:
    tensors = backbone.tensors() if isinstance(backbone, Backbone) else {}
    return next((tensor.device for tensor in tensors.values()), torch.device("cpu"))


def other_futures(events: EventLog, now: int, rng: np.random.Generator) -> dict[str, EventLog]:
    """The same past with other futures from a step on: deleted, permuted, and made of random facts."""
    past, rest = events.prefix(now), events.between(now, events.end)
    n = len(rest)

    def with_future(subject: np.ndarray, relation: np.ndarray, object_: np.ndarray) -> EventLog:
        step = rest.step
        return past.append(EventLog(subject, relation, object_, step, events.entities, events.relations, events.clock))

    mixed = rng.permutation(n)
    return {
        "the future was deleted": past,
        "the future was permuted": with_future(rest.subject[mixed], rest.relation[mixed], rest.object[mixed]),
        "the future was made of random facts": with_future(
            rng.integers(events.n_entities, size=n),
            rng.integers(events.n_relations, size=n),
            rng.integers(events.n_entities, size=n),
        ),
    }


def _rows(scores: Scores, rows: torch.Tensor | slice) -> Scores:
    uncertainty, members = scores.uncertainty, scores.members
    return Scores(
        scores.log_p[rows],
        None if uncertainty is None else uncertainty[rows],
        None if members is None else members[:, rows],
    )


def _same(expected: Scores, found: Scores, tolerance: float, complaint: str) -> None:
    pairs = [(expected.log_p, found.log_p)]
    if expected.uncertainty is not None and found.uncertainty is not None:
        pairs.append((expected.uncertainty, found.uncertainty))
    if expected.members is not None and found.members is not None:
        pairs.append((expected.members, found.members))
    gap = max(float((a - b).abs().max()) for a, b in pairs)
    # of the scale of the scores: float32 logits of 1000 are exact to no more than 1e-4
    if gap > tolerance * max(1.0, float(expected.log_p.abs().max())):
        raise BackboneError(
            f"{complaint} (largest difference {gap:.3g}); score a query from its own ids and the facts before its step "
            "alone."
        )
