"""Audit: leakage and integrity checks of a run: figures re-derived, locked before test, and blind to the future."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch

from bridgemem.backbones import BACKBONES
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.check import other_futures
from bridgemem.backbones.own import read_at_import
from bridgemem.backbones.reads import Reads
from bridgemem.backbones.retraining import check_retrained, trainer
from bridgemem.backbones.scorer import Scorer
from bridgemem.backbones.trained import RENEWED, TrainingNote, training_note
from bridgemem.backbones.verdicts import MAKERS_WORD, Finding
from bridgemem.errors import BridgeMemError, NotFoundError, RunError
from bridgemem.evaluation.evaluate import history, queries_of, rank_columns, read
from bridgemem.evaluation.records import Record, metrics_of
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries, sample_rows
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import NONE, paired_gains
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.residuals.learned import Learned
from bridgemem.residuals.learning import late_rows, renewal_split
from bridgemem.residuals.method import BACKBONE, Method
from bridgemem.residuals.scoring import Choice, Replay, Scoring, replay
from bridgemem.residuals.selection import OFF, SELECTION_FILTERS, Selection, choose, grid
from bridgemem.residuals.validation import validation_queries
from bridgemem.runs import Run
from bridgemem.storage.files import read_names
from bridgemem.storage.tables import read_table

QUERIES_A_STEP = 64
# another device may swap candidates whose scores are all but equal: the share of ranks that may differ, and the most
# that MRR and Hits@k may. Between CPU kernels and from CUDA to CPU none of 12,000 ranks and more did.
SWAPS = 0.0005
NOTICED = 0.001  # a rank differs where 1/rank does by more: every change above rank 30, and no jitter far below it
FORGED = 0.01  # the share of forged ranks for which a sample says how likely it misses them


def audit(
    run: Run,
    dataset: Dataset | None = None,
    split: str = "test",
    *,
    steps: int = 5,
    sample: int | None = None,
    seed: int | None = None,
    device: str = "cpu",
    retrain: bool = False,
    progress: Progress = SILENT,
) -> list[Finding]:
    """All checks on a run, each shown, not shown or not checkable. A failed check never stops the others.

    Args:
        run: A run that was evaluated on the split.
        dataset: Its data; the run's own when left out.
        split: "test" or "valid".
        steps: How many steps are scored again with the future corrupted.
        sample: How many queries are ranked again; all of them, and all of validation, when left out.
        seed: What the sample and the steps are drawn with; when left out it is drawn now and cannot be known before.
        device: Where queries are ranked again.
        retrain: Whether the backbone is trained again, on data whose later part differs; without it, what a model of
            your own read in training is its maker's word.
        progress: Told how far the ranking is.
    """
    whole = dataset or run.dataset
    known = whole.without_test() if split == "valid" else whole
    part, prefix = ("known", known.known) if split == "test" else ("train", known.train)
    drawn = secrets.randbits(48) if seed is None else seed

    def blind() -> Iterator[Finding]:
        frozen_at = history(run, known, split, "cpu").frozen_at
        learned = [model for name in run.fit_names() if (model := run.learned(name)) is not None]
        found = future_blind(run.scorer(part), run.transitions(part), known, split, steps, drawn, frozen_at, learned)
        backbone = run.backbone()
        # one of our own reads nothing but the past that it is given, which tests show
        trusted = backbone.reads_past and (backbone.name in BACKBONES or retrain)
        return found if trusted else map(partial(_on_trust, backbone), found)

    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "data": lambda: [_data(run, whole)],
        "identity": lambda: [_identity(run, whole)],
        "training": lambda: _training(run, whole, retrain),
        **{f"selection ({name})": partial(_lock, run, known, split, name) for name in SELECTION_FILTERS},
        "validation grid": lambda: _grids(run, whole.without_test(), sample, device, progress),
        "metrics from ranks": lambda: [_metrics(run, split)],
        "ranks from scores": lambda: [_ranks(run, known, split, sample, drawn, device, progress)],
        "counts from the past": lambda: [_counts(run.transitions(part), prefix)],
        "blind to the future": blind,
    }
    return [finding for name, check in checks.items() for finding in _carried_out(name, check)]


def _carried_out(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check; one that cannot be carried out on what lies in the folder has failed."""
    try:
        return list(check())
    except NotFoundError:  # the class of a backbone, without which nothing is known of the run
        raise
    except BridgeMemError as problem:
        return [Finding(name, False, str(problem))]
    except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as problem:
        return [Finding(name, False, f"could not be checked: {type(problem).__name__}: {problem}")]


def _data(run: Run, dataset: Dataset) -> Finding:
    """The events and the split are those that the run was fitted on."""
    config, events = run.config, dataset.events
    found = (events.fingerprint, dataset.valid_start, -1 if dataset.test_start is None else dataset.test_start)
    held = found == (config.fingerprint, config.valid_start, config.test_start)
    seen = f"fingerprint {found[0]}, validation from step {found[1]}, test from {found[2]}"
    return Finding("data", held, seen if held else f"{seen}: not what the run was fitted on")


def _identity(run: Run, dataset: Dataset) -> Finding:
    """Ids and steps mean what they meant when the run was written: names, clock and boundaries are the same."""
    noted, found = run.identity(), dataset.identity
    for kind, vocabulary in (("entities", dataset.events.entities), ("relations", dataset.events.relations)):
        if read_names(run.folder / f"{kind}.txt") != vocabulary.names:
            return Finding("identity", False, f"the data has other names than {kind}.txt of the run, or another order")
    if other := noted.differences(found):
        return Finding("identity", False, f"the data has {other} than when the run was fitted")
    return Finding("identity", True, f"{found.digest}, of names, clock and split boundaries")


def _training(run: Run, dataset: Dataset, retrain: bool) -> Iterator[Finding]:
    """The backbone was trained on the train split and nothing else: by its note, by fitting it again, or on trust."""
    note, name = training_note(run.folder / "backbone"), run.config.backbone
    built_in = BACKBONES.get(name)
    if note.fingerprint is None and built_in and not built_in.trained and name != "stored":
        if not run.refreshes():
            backbone = run.backbone()
            again = type(backbone).fit(dataset.without_test(), backbone.settings).tensors()
            held = all(torch.equal(tensor.cpu(), again[key]) for key, tensor in backbone.tensors().items())
            seen = "fitted again on the train split, " + ("it is the same" if held else "it is another")
            yield Finding("training", held, seen)
    elif note.fingerprint is None and not retrain:
        yield Finding("training", None, f"{name} was not trained here: what it read is {MAKERS_WORD}")
    elif note.fingerprint is not None:
        yield from _noted(note, _as_fitted(run, dataset), built_in is not None, retrain)
    if run.config.renewed:
        yield _renewal(run, dataset)
    if retrain:
        yield _trained_again(run.backbone(), dataset)


def _as_fitted(run: Run, dataset: Dataset) -> Dataset:
    """Train and validation as the run was fitted on them; a refresh may have added names and earlier events to both."""
    known = dataset.known
    if run.refreshes():
        from bridgemem.live.refresh import chosen_on

        known = chosen_on(run, dataset)
    return Dataset(dataset.name, known, dataset.valid_start)


def _noted(note: TrainingNote, split: Dataset, built_in: bool, retrain: bool) -> Iterator[Finding]:
    """What the note of a training says; of a class of one's own it says what the class was given, not what it read."""
    noted = note.fingerprint
    if noted != split.train.fingerprint:
        said = f"the backbone was trained on {noted}, and the train split is {split.train.fingerprint}"
        yield Finding("training", False, said)
    elif note.stopped_by_other(split):
        said = f"the backbone was trained next to {note.known}, and train and validation are {split.known.fingerprint}"
        yield Finding("training", False, said)
    elif built_in:
        yield Finding("training", True, f"the backbone was trained on {noted}")
    elif not retrain:  # which checks it, and says so itself
        yield Finding(
            "training", None, f"its note says that it was given the train split, {noted}; --retrain checks it"
        )


def _renewal(run: Run, dataset: Dataset) -> Finding:
    """The backbone that was trained once more saw validation but its later part, and nothing of test."""
    note, learned = training_note(run.folder / RENEWED), run.learned("raw")
    split = None if learned is None else renewal_split(_as_fitted(run, dataset), learned.settings)
    wanted = None if split is None else (split.train.fingerprint, split.known.fingerprint)
    held = (note.fingerprint, note.known) == wanted
    seen = "train and validation but its later part, which told it when to stop"
    return Finding("renewed backbone", held, f"trained once more on {note.fingerprint}, {'' if held else 'not '}{seen}")


def _trained_again(backbone: Backbone, dataset: Dataset) -> Finding:
    """The backbone's class, trained again on data whose later part differs, scores the earlier part the same."""
    check = "trained again"
    train = trainer(type(backbone), backbone.settings) if backbone.retrained else None
    if train is None or backbone.name == "stored":
        return Finding(check, None, f"{backbone.name} cannot be trained here: what it read is {MAKERS_WORD}")
    reads = Reads(read_at_import(type(backbone)))
    found = check_retrained(train, dataset.known, valid_start=dataset.valid_start, reads=reads)
    return replace(found, check=check)


def _lock(run: Run, dataset: Dataset, split: str, name: str) -> list[Finding]:
    """The selection is as locked, follows from its grid, knew no test facts, and the figures were read under it."""
    check, selection = f"selection ({name})", run.selection(name)
    made_on, before = dataset.known, ""
    if run.refreshes():
        from bridgemem.live.refresh import chosen_on

        made_on, before = chosen_on(run, dataset), " of the run before it was refreshed"
    if selection.fingerprint != made_on.fingerprint:
        return [Finding(check, False, f"was made on other events than train and validation{before}")]
    if wrong := _contradiction(selection, grid(run.settings)):
        return [Finding(check, False, wrong)]
    used = sorted({str(row.lock) for row in _measured(run, split) if row.selected_by == name})
    held = used == [selection.lock()]
    made = f"made on train and validation{before}, " if before else ""
    seen = f"{made}locked as {selection.lock()}, figures were read under {', '.join(used) or 'none'}"
    return [Finding(check, held, seen)]


def _contradiction(selection: Selection, points: Sequence[Choice]) -> str | None:
    """How a selection contradicts the grid that it carries, given the points which the run's settings name."""
    choices = [Choice(*(row[name] for name in asdict(OFF))) for row in selection.grid]
    measured = [Metrics(*(row[name] for name in METRICS)) for row in selection.grid]
    if choices != list(points):
        return "its grid does not have the points that the settings of the run name"
    allowed, best = choose(choices, measured, selection.backbone, queries=selection.queries)
    choice, chosen = (OFF, selection.backbone) if best is None else (choices[best], measured[best])
    if choice != selection.choice:
        return f"the stored validation grid gives {_words(choice)}, and the record says {_words(selection.choice)}"
    noted = [row["allowed"] for row in selection.grid]
    if (noted, selection.chosen, selection.feasible) != (allowed, chosen, best is not None):
        return "what it says of its choice is not what the stored validation grid says"
    return None


def _words(choice: Choice) -> str:
    return f"lambda {choice.lam:g}, gate {choice.gate}, tau {choice.tau:g}"


def _grids(run: Run, dataset: Dataset, sample: int | None, device: str, progress: Progress) -> Iterator[Finding]:
    """Validation ranked again under every choice gives the grids that the selections were made from."""
    if run.refreshes():
        why = "the run was refreshed, and what the choice was made with is not kept; audit the run that was fitted"
        yield Finding("validation grid", None, f"not checkable: {why}")
        return
    if sample is not None:
        yield Finding("validation grid", None, "not checked with --sample: it takes all of validation")
        return
    queries, points, seed = validation_queries(dataset), grid(run.settings), run.config.seed
    chosen_on = sample_rows(len(queries), run.settings.max_queries, seed).numpy()
    late = {name: _late(run, name, queries) for name in SELECTION_FILTERS}
    read = np.unique(np.concatenate([chosen_on, *late.values()]))
    own = np.searchsorted(read, chosen_on)
    past, filters = history(run, dataset, "valid", device), Filters(dataset.events, device)
    scoring = Scoring(run.scorer("train", device), past, run.transitions("train", device), choices=points)
    label = "ranking validation again"
    replayed = replay(scoring, queries.take(torch.from_numpy(read)), filters=filters, progress=progress, label=label)
    for name in SELECTION_FILTERS:
        try:
            selection = run.selection(name)
        except BridgeMemError:  # which the check of the selection itself tells
            continue
        yield _grid(name, selection, replayed, own)
        # the backbone is the first column, and what a residual that is switched off ranks by
        places: dict[Choice, int] = {OFF: 0} | {point: column for column, point in enumerate(points, start=1)}
        rows, column = np.searchsorted(read, late[name]), places.get(selection.choice)
        if len(rows) and column is not None:
            yield _preference(run, name, rows, *(replayed.of(name, c)[rows] for c in (0, column)))


def _late(run: Run, name: str, queries: Queries) -> np.ndarray:
    """Which validation queries the residuals were compared on, int64; none where a single one was fitted."""
    learned = run.learned(name)
    return np.zeros(0, int) if learned is None else late_rows(queries, learned.settings, run.config.seed).numpy()


def _grid(name: str, selection: Selection, replayed: Replay, rows: np.ndarray) -> Finding:
    """rows int64: of the queries that were ranked again, those that the choice was made on."""
    stored = [asdict(selection.backbone), *selection.grid]
    gaps = [
        abs(value - row[metric])
        for column, row in enumerate(stored)
        for metric, value in Metrics.of(replayed.of(name, column)[rows]).as_dict().items()
    ]
    worst, n = float(np.max(gaps)), len(rows)  # NaN where anything is NaN, and then no less than the bound
    held = worst < SWAPS and len(stored) == replayed.ranks.shape[1] and selection.queries == n
    seen = f"{n:,} validation queries ranked again under {len(stored) - 1} choices, largest difference {worst:.1g}"
    return Finding(f"validation grid ({name})", held, seen if held else f"{seen}: not what the choice was made from")


def _preference(run: Run, name: str, rows: np.ndarray, backbone: np.ndarray, fixed: np.ndarray) -> Finding:
    """What later validation says for or against the learned residual, as far as the run keeps what it was made with."""
    check, held = f"preferred residual ({name})", run.held_out(name)
    if held is None:
        return Finding(check, None, "not checkable: the run does not say how its residuals did on later validation")
    gaps = [Metrics.of(backbone).mrr - held.backbone, Metrics.of(fixed).mrr - held.bridgemem]
    told = f"{held.better} is preferred on {held.queries:,} later validation queries"
    if not np.abs(gaps).max() < SWAPS or len(rows) != held.queries:
        return Finding(check, False, f"{told}, where backbone and the paper's residual do not come out again")
    if not abs(held.learned - held.bridgemem - held.gain[0]) < 1e-9:
        return Finding(check, False, f"{told}, and the noted gain is not the difference of the noted figures")
    seen = (
        f"{told}: MRR {held.bridgemem:.4f} of bridgemem is right; {held.learned:.4f} of learned is not checkable, "
        "its network is not kept"
    )
    return Finding(check, None, seen)


def _measured(run: Run, split: str) -> list[Record]:
    """The rows of metrics.json on a split."""
    rows = metrics_of(run, split)
    if not rows:
        raise RunError(f"{run.folder} was not evaluated on {split}; run `bridgemem evaluate`.")
    return rows


def _metrics(run: Run, split: str) -> Finding:
    """Every figure of metrics.json, gains and intervals too, comes out again from the ranks of the single queries."""
    columns, measured = read_table(run.ranks_path(split)), _measured(run, split)
    gaps = []
    for row in measured:
        base, name = columns[BACKBONE.column(row.filter)], Method(row.method, row.selected_by).column(row.filter)
        again = Metrics.of(columns[name]).as_dict()
        gaps += [again[m] - getattr(row, m) for m in METRICS] + [len(base) - row.queries]
        if row.method != "backbone":
            for m, gain in paired_gains(base, columns[name], columns["step"]).items():
                # runs of earlier versions gave intervals of fewer steps than there are intervals of now
                known = 1 if (gain.low, gain.high) == NONE else 3
                gaps += [a - b for a, b in zip((gain.value, gain.low, gain.high)[:known], row.gain[m], strict=False)]
    worst = float(np.abs(gaps).max())  # NaN where anything is NaN, and then no less than the bound
    rows = sorted(Method(row.method, row.selected_by).column(row.filter) for row in measured)
    methods = [method for method in run.methods() if method.name != "learned"]
    wanted = [method.column(f) for method in methods for f in FILTERS]
    wanted += [run.method("learned", f).column(f) for f in FILTERS if run.fit_names()]
    seen = f"{len(measured)} rows, largest difference {worst:.1g}" + (
        "" if rows == sorted(wanted) else ", rows are missing"
    )
    return Finding("metrics from ranks", worst < 1e-9 and rows == sorted(wanted), seen)


def _ranks(
    run: Run, dataset: Dataset, split: str, sample: int | None, seed: int, device: str, progress: Progress
) -> Finding:
    """The table asks the queries of the split, and they, or a sample of them, scored again are ranked as it says."""
    check, columns = "ranks from scores", read_table(run.ranks_path(split))
    queries = queries_of(dataset, split, max(len(columns["step"]), 1))
    assert queries.answer is not None
    asked = {"actor": queries.actor, "relation": queries.relation, "step": queries.step, "answer": queries.answer}
    if not all(np.array_equal(columns[name], column.numpy()) for name, column in asked.items()):
        return Finding(check, False, f"the table holds other queries than those of {split}")
    rows, n = np.arange(len(queries)), len(queries)
    if sample is not None and sample < n:
        rows = np.sort(np.random.default_rng(seed).choice(n, size=sample, replace=False))
    again = read(run, dataset, split, queries.take(torch.from_numpy(rows)), device, progress)
    made, stored = rank_columns(again), {name: column[rows] for name, column in columns.items()}
    size = f"all {n:,}" if len(rows) == n else f"{len(rows):,} of {n:,}"
    wrong = _unlike(made, stored, list(again.columns))
    seen = f"{size} queries ranked again, {wrong or 'with the ranks of the table'}"
    if len(rows) < n:
        missed = chance_missed(n, math.ceil(n * FORGED), len(rows), math.floor(len(rows) * SWAPS))
        seen += (
            f"; drawn with seed {seed}: if {FORGED:.0%} of the ranks were forged, a sample of this size would miss it "
            f"with probability {missed:.2g}"
        )
    return Finding(check, wrong is None, seen)


def _unlike(made: Mapping[str, np.ndarray], stored: Mapping[str, np.ndarray], methods: Sequence[Method]) -> str | None:
    """Where a table differs from the same queries ranked again, ranks first; None where it does not."""
    n = len(made["step"])
    for method in methods:
        for f in FILTERS:
            ranks, own = made[method.column(f)], stored[method.column(f)]
            change = np.abs(1 / ranks - 1 / own)
            differ = int((~(change <= NOTICED)).sum())  # NaN differs
            if differ > n * SWAPS or not change.mean() < SWAPS:
                scored, noted = (f"{Metrics.of(r).mrr:.4f}" for r in (ranks, own))
                return (
                    f"{method} under the {f} filter: {differ:,} of {n:,} ranks differ, MRR {noted} in the table and "
                    f"{scored} from the scores"
                )
    for name in ("uncertainty", "answer_support", "answer_lag", "triple_seen"):
        close = np.isclose(made[name].astype(float), stored[name].astype(float), rtol=0, atol=NOTICED, equal_nan=True)
        differ = int((~close).sum())
        if differ > n * SWAPS:
            return f"{differ:,} of {n:,} values of {name} differ"
    return None


def chance_missed(queries: int, forged: int, sample: int, allowed: int = 0) -> float:
    """The probability that a sample of the queries, drawn at random, holds at most `allowed` of the forged ones."""

    def log_ways(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    honest = queries - forged
    held = range(max(0, sample - honest), min(allowed, forged, sample) + 1)
    ways = log_ways(queries, sample)
    return math.fsum(math.exp(log_ways(forged, i) + log_ways(honest, sample - i) - ways) for i in held)


def _counts(fitted: Transitions, prefix: EventLog) -> Finding:
    """Prior and count table come out again from the events before the split, so nothing later is in them."""
    again = CountTable.of(mine(prefix, fitted.space, fitted.settings), fitted.space)
    held = again.equal(fitted.counts.to("cpu"))
    held = held and torch.allclose(log_prior(prefix), fitted.log_pi.cpu(), rtol=0, atol=1e-9)
    seen = f"{int(again.counts.sum()):,} counts of {len(prefix):,} events" + (
        "" if held else " are not those of the run"
    )
    return Finding("counts from the past", held, seen)


def future_blind(
    backbone: Scorer,
    transitions: Transitions,
    dataset: Dataset,
    split: str,
    steps: int = 5,
    seed: int = 0,
    frozen_at: int | None = None,
    learned: Sequence[Learned] = (),
) -> Iterator[Finding]:
    """Score a sample of steps again with all that they must not read corrupted: not one bit may change.

    That is everything at and after the step, and with a frozen history everything from `frozen_at` on.
    """
    rng = np.random.default_rng(seed)
    events = dataset.events if split == "test" else dataset.known
    moments = np.unique(dataset.split(split).step)
    sample = np.sort(rng.choice(moments, size=min(steps, len(moments)), replace=False))
    parts = partial(_parts, backbone, transitions, learned)
    true, worst = parts(Past(events, frozen_at)), dict.fromkeys(("backbone", "evidence"), 0.0)
    for now in sample.tolist():
        asked = Queries.of(events.between(now, now + 1))
        asked = asked.take(torch.from_numpy(rng.permutation(len(asked))[:QUERIES_A_STEP]))
        before = true(asked)
        hidden = now if frozen_at is None else min(now, frozen_at)
        for future in other_futures(events, hidden, rng).values():
            after = parts(Past(future, frozen_at))(asked)
            for name, expected in before.items():
                gaps = (_gap(a, b) for a, b in zip(expected, after[name], strict=True))
                worst[name] = max(worst.get(name, 0.0), *gaps)
    for name, gap in worst.items():
        seen = f"{len(sample)} steps scored again with the future corrupted, largest change {gap:.3g}"
        # with the seed a failure can be looked at again
        seen += "" if gap == 0.0 else f", drawn with seed {seed}"
        yield Finding(f"{name} blind to the future", gap == 0.0, seen)


def _on_trust(backbone: Backbone, finding: Finding) -> Finding:
    """What a corrupted past shows of a backbone that may have a table of its own: little, if nothing changes."""
    if not finding.check.startswith("backbone") or not finding.passed:
        return finding
    if backbone.reads_past:
        seen = f"{finding.seen}; that it has no table of its own is {MAKERS_WORD}, --retrain checks it"
    else:
        seen = f"it does not score from the past that it is given; that it reads nothing later is {MAKERS_WORD}"
    return replace(finding, passed=None, seen=seen)


def _parts(
    backbone: Scorer, transitions: Transitions, learned: Sequence[Learned], past: Past
) -> Callable[[Queries], dict[str, tuple[torch.Tensor, ...]]]:
    """All that a score is made of, as read from one history, whose indices are built here."""
    scoring = Scoring(backbone, past, transitions, learned=learned)

    def read_parts(asked: Queries) -> dict[str, tuple[torch.Tensor, ...]]:
        scored = scoring.of(asked)
        scores, e = scored.scores, scored.evidence
        assert scores.uncertainty is not None
        assert e is not None
        found: dict[str, tuple[torch.Tensor, ...]] = {
            "backbone": (scores.log_p, scores.uncertainty),
            "evidence": (e.row, e.candidate, e.a_ct, e.a_nn, e.support, e.lag),
        }
        if learned:
            found["learned"] = (scored.row, scored.candidate, scored.delta)
        return found

    return read_parts


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; infinite where the shapes differ or a difference is no number."""
    if a.shape != b.shape:
        return math.inf
    if torch.equal(a, b):
        return 0.0
    gap = float((a.double() - b.double()).abs().max())
    return gap if gap > 0 else math.inf
