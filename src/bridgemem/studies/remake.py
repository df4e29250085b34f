"""Remake: recompute every row of a file of records from the raw files, with a plan and an estimate; resumable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from bridgemem.backbones import BACKBONES, backbone_class, is_trained
from bridgemem.backbones.trained import default_settings
from bridgemem.config import SAMPLED, Declared, Settings
from bridgemem.errors import BridgeMemError, DataError, SettingsError
from bridgemem.evaluation.records import Record, write_records
from bridgemem.evaluation.reliability import evaluate_horizon, reliability, reliability_records
from bridgemem.evaluation.strata import parts
from bridgemem.evaluation.tables import SHORT, Table, figure
from bridgemem.evaluation.what import evaluate_what
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG
from bridgemem.events.loading import load
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import learning_of
from bridgemem.runs import Run
from bridgemem.storage.files import write_json
from bridgemem.storage.schema import as_settings, read_as
from bridgemem.studies.ablation import ablate, ablate_learned
from bridgemem.studies.counting import METHOD as COUNTING
from bridgemem.studies.counting import ablate_counting
from bridgemem.studies.headroom import measure as headroom
from bridgemem.studies.leakage import measure
from bridgemem.studies.ranks import ranks
from bridgemem.studies.report import backbone_seed
from bridgemem.studies.reproduce import reproduce

MAIN = ("backbone", "bridgemem", "learned")
STATE = "remade.json"
READ_PER_SECOND = 1500  # queries, for the estimate; a GPU reads more of them
UNKNOWN_SECONDS = 60.0  # of a training or a fit that no record has the seconds of
# files next to the records that other commands write
ELSEWHERE = {
    "bench.jsonl": "seconds of one machine; `make bench` measures yours",
    "long.jsonl": "outcomes of `make test-long`",
    "scale.json": "memory and seconds at large scale; `python -m benchmarks.scale`",
    "occurrence.jsonl": "whether and when; `bridgemem evaluate RUN --query whether` on each run",
}


@dataclass(frozen=True)
class Job:
    """One fit and what is read of it. work: "bridgemem" or "learned", then studies of the run; or one that needs none.

    rows: how many records it recomputes. minutes: about what it takes, as recorded on the device of the records.
    """

    dataset: str
    backbone: str
    backbone_seed: int
    seed: int
    history: str
    cross_fit: float
    work: tuple[str, ...]
    rows: int = 0
    minutes: float = 0.0
    backbone_settings: dict[str, Any] | None = None
    learned: dict[str, Any] = field(default_factory=dict)  # settings of the learned residual, as noted
    sampled: bool = False  # whether the paper's residual was fitted on samples, as it is next to the learned one

    @property
    def name(self) -> str:
        """The name that tells the job from others and says what it does."""
        crossed = f", cross-fit {self.cross_fit:g}" if self.cross_fit else ""
        past = "" if self.history == "rolling" else f", {self.history}"
        seeds = f"seeds {self.backbone_seed}/{self.seed}"
        return f"{self.dataset}, {self.backbone}, {seeds}{past}{crossed}: {', '.join(self.work)}"


@dataclass(frozen=True)
class Plan:
    """What is to be done, in its order; what cannot be remade, and which inputs are not those of the records."""

    jobs: tuple[Job, ...]
    left_out: tuple[tuple[str, str], ...]
    differs: tuple[tuple[str, str], ...]

    @property
    def minutes(self) -> float:
        return sum(job.minutes for job in self.jobs)

    def not_remade(self) -> Table:
        return Table("Not remade", ["rows", "why"], [list(one) for one in self.left_out] or [["none", ""]])

    def other_inputs(self) -> Table:
        return Table("Remade from other inputs", ["rows", "why"], [list(one) for one in self.differs] or [["none", ""]])


@dataclass(frozen=True)
class Done(Declared):
    """How a job went. failed: why not, as a sentence."""

    seconds: float
    records: int
    failed: str = ""


@dataclass
class _Group:
    """Records of one backbone on one data set with one seed each."""

    crosses: set[float] = field(default_factory=set)
    records: list[Record] = field(default_factory=list)
    work: list[str] = field(default_factory=list)


def plan(records: Iterable[Record], *, only: Sequence[str] = (), next_to: Path | None = None) -> Plan:
    """The jobs that recompute records, by data set.

    Args:
        records: What was measured.
        only: Data sets, or one backbone on one, as in "yago/hri"; all of them when left out.
        next_to: The file of the records, whose neighbours other commands write.
    """
    found = list(records)
    known = {r.dataset for r in found}
    if missing := set(only) - known - {f"{r.dataset}/{r.backbone}" for r in found}:
        choice = ", ".join(sorted(known))
        raise DataError(
            f"there is no record of {', '.join(sorted(missing))}; choose from {choice}, or one backbone, as in "
            "yago/hri."
        )
    found = [r for r in found if not only or {r.dataset, f"{r.dataset}/{r.backbone}"} & set(only)]
    left_out: Counter[tuple[str, str]] = Counter()
    groups: dict[tuple[str, str, int, int, str], _Group] = {}
    alone: dict[tuple[str, str, str], list[Record]] = {}
    studies: list[tuple[Record, str]] = []
    for r in found:
        if why := _impossible(r):
            left_out[f"{r.dataset}, {r.backbone}, {r.method.partition('=')[0]}", why] += 1
        elif r.method in ("bridgemem", "learned") and r.horizon == 1:
            group = groups.setdefault((r.dataset, r.backbone, backbone_seed(r), r.seed, r.history), _Group())
            group.records.append(r)
            if r.method == "learned":
                group.crosses.add(r.cross_fit)
        elif r.method == "backbone" and r.horizon == 1:
            alone.setdefault((r.dataset, r.backbone, r.history), []).append(r)
        elif r.method.startswith("leakage:"):
            alone.setdefault((r.dataset, r.backbone, "leakage"), []).append(r)
        else:
            studies.append((r, _study(r)))
    for r, study in studies:
        owner = _owner(groups, r)
        if owner is None:
            what = f"{r.dataset}, {r.backbone}, {r.method.partition('=')[0]}"
            left_out[what, "there is no row of the run it is read from"] += 1
            continue
        owner.records.append(r)
        if study not in owner.work:
            owner.work.append(study)
    jobs = [*_fits(groups, alone), *_without_fit(groups, alone)]
    rows = [(f"{count} of {what}", why) for (what, why), count in sorted(left_out.items())]
    if next_to is not None:
        rows += [(name, why) for name, why in ELSEWHERE.items() if (next_to.parent / name).is_file()]
    return Plan(tuple(_estimated(sorted(jobs, key=_order), found)), tuple(rows), tuple(_differing(found)))


def _impossible(r: Record) -> str | None:
    """Why a record cannot be recomputed from raw files; None where it can."""
    if r.dataset not in CATALOG and r.dataset != "world":
        return "it is of no named data set"
    if r.backbone not in BACKBONES and r.backbone != "relations":
        return "this backbone is not part of the program"
    if r.backbone == "stored":
        return "its scores came from a model elsewhere"
    return None


def _study(r: Record) -> str:
    """What is read of a run to make a record that is none of its evaluation."""
    if r.horizon > 1:
        return f"horizon:{r.horizon}"
    if r.method.startswith("ablation:part="):
        return "parts:" + r.method.removeprefix("ablation:part=").partition(":")[0]
    if r.method.startswith("ablation:learned="):
        return "ablate-learned"
    if r.method.startswith(COUNTING):
        return "ablate-counting"
    if r.method.startswith("ablation:"):
        return "ablate"
    return r.method.partition(":")[0]  # calibration, headroom, what


def _owner(groups: dict[tuple[str, str, int, int, str], _Group], r: Record) -> _Group | None:
    """The group whose run a study is read from: the same backbone and seed, or any default model for relations."""
    for (dataset, backbone, seed_of_backbone, seed, history), group in groups.items():
        named = backbone == r.backbone and seed_of_backbone == backbone_seed(r)
        own = named if r.backbone != "relations" else backbone == "recurrence-typed"
        # the history that an ablation changes is its own
        if dataset == r.dataset and own and seed == r.seed and history == "rolling":
            return group
    return None


def _fits(groups: dict[tuple[str, str, int, int, str], _Group], alone: dict[Any, list[Record]]) -> list[Job]:
    made, begun = [], set()
    for (dataset, backbone, seed_of_backbone, seed, history), group in groups.items():
        own = [r for r in alone.get((dataset, backbone, history), []) if backbone_seed(r) == seed_of_backbone]
        known = next((r.settings.get("backbone_settings") for r in own if r.settings.get("backbone_settings")), None)
        counted = 0 if (dataset, backbone, seed_of_backbone, history) in begun else len(own)
        begun.add((dataset, backbone, seed_of_backbone, history))
        for number, cross in enumerate(sorted(group.crosses) or [0.0]):
            first = number == 0
            rows = [r for r in group.records if (r.cross_fit == cross if r.method == "learned" else first)]
            noted = next((_noted_learning(r) for r in rows if r.method == "learned"), {})
            work = ("learned" if group.crosses else "bridgemem", *(group.work if first else ()))
            job = Job(dataset, backbone, seed_of_backbone, seed, history, cross, work, len(rows) + first * counted)
            made.append(replace(job, backbone_settings=known, learned=noted, sampled=any(map(_sampled, rows))))
    return made


def _without_fit(groups: dict[tuple[str, str, int, int, str], _Group], alone: dict[Any, list[Record]]) -> list[Job]:
    """Backbones that no residual was measured on, and what the queries of a step give away."""
    fitted = {(dataset, backbone, seed, history) for dataset, backbone, seed, _, history in groups}
    made = []
    for (dataset, backbone, history), own in alone.items():
        for seed in sorted({backbone_seed(r) for r in own}):
            rows = [r for r in own if backbone_seed(r) == seed]
            if history == "leakage":
                made.append(Job(dataset, backbone, seed, rows[0].seed, "rolling", 0.0, ("leakage",), len(rows)))
            elif (dataset, backbone, seed, history) not in fitted:
                work = "bridgemem" if is_trained(backbone) else "ranks"
                made.append(Job(dataset, backbone, seed, rows[0].seed, history, 0.0, (work,), len(rows)))
    return made


def _order(job: Job) -> tuple[Any, ...]:
    """By data set, what is quick and needed by all first."""
    trained = job.backbone in BACKBONES and is_trained(job.backbone)
    return job.dataset, trained, job.backbone, job.backbone_seed, job.seed, job.cross_fit


def _estimated(jobs: Iterable[Job], records: Sequence[Record]) -> list[Job]:
    """Jobs with their minutes, from the seconds that the records have of the same training and fit."""
    training: dict[tuple[str, str], float] = {}
    fitting: dict[tuple[str, str, str], float] = {}
    queries: dict[str, int] = {}
    for r in records:
        if (seconds := r.settings.get("train_seconds")) is not None:
            training[r.dataset, r.backbone] = float(seconds)
        if r.fit_seconds is not None:
            fitting[r.dataset, r.backbone, r.method] = r.fit_seconds + (r.refit_seconds or 0.0)
        queries[r.dataset] = max(queries.get(r.dataset, 0), r.queries)
    made, begun = [], set()
    for job in jobs:
        pass_ = queries.get(job.dataset, 0) / READ_PER_SECOND
        seconds = pass_ * (2 + 8 * sum(work.startswith("ablate") for work in job.work) + len(job.work))
        fitted = job.work[0] in ("bridgemem", "learned")
        key = (job.dataset, job.backbone, job.backbone_seed)
        for what, times in (("first", 1), ("further", _further(job))) if fitted and is_trained(job.backbone) else ():
            if times and (*key, what) not in begun:  # all fits of one seed share them
                seconds += times * training.get(key[:2], UNKNOWN_SECONDS)
                begun.add((*key, what))
        for residual in ("bridgemem", "learned") if job.work[0] == "learned" else job.work[:1]:
            seconds += fitting.get((job.dataset, job.backbone, residual), UNKNOWN_SECONDS) if fitted else 0.0
        made.append(replace(job, minutes=seconds / 60))
    return made


def _further(job: Job) -> int:
    """How often a fit trains its backbone again: on what came before each block of train, and on validation too."""
    if job.work[0] != "learned":
        return 0
    learned = learning_of(backbone_class(job.backbone), LearnedSettings(**{**job.learned, "cross_fit": job.cross_fit}))
    return (learned.blocks if learned.cross_fit else 0) + (learned.renewed == "on")


def _differing(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Rows whose inputs were others than those of today, and how."""
    found: Counter[tuple[str, str]] = Counter()
    learned = {(r.dataset, r.backbone) for r in records if r.method == "learned"}
    for r in records:
        if _impossible(r) is not None:
            continue
        what = f"{r.dataset}, {r.backbone}"
        if r.method == "learned":
            if "train_queries" not in r.settings:
                found[f"{what} + learned", "fitted by an earlier recipe of the learned residual"] += 1
            elif "renewed" not in r.settings:
                why = "fitted before it read whether a pair keeps time"
                found[f"{what} + learned", why + ", the backbone trained once" * _asks_two(r)] += 1
            elif lost := _replaced(r):
                found[f"{what} + learned", f"fitted with {lost}: the backbone has its own now"] += 1
        two = r.split == "test" and (r.dataset, r.backbone) in learned and _asks_two(r)
        if two and r.method in MAIN[:2] and "renewed" not in r.settings:
            found[f"{what}, {r.method}", "read from one training: next to a learned residual test asks two"] += 1
        if r.method == "backbone" and r.backbone in BACKBONES and is_trained(r.backbone):
            if "backbone_settings" not in r.settings:
                found[what, "its training noted no settings: those of today are taken"] += 1
            if not str(r.settings.get("train_device", r.device)).startswith(r.device[:4]):
                found[what, "trained on another device than it was read on"] += 1
    return [(f"{count} of {what}", why) for (what, why), count in sorted(found.items())]


def remake(
    made: Plan,
    runs: Path,
    records: Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    progress: Progress = SILENT,
) -> dict[str, Done]:
    """Do the jobs of a plan that are not done yet, each into run folders and a file of records; how each went.

    A job that fails says why, and the next one begins. Started again, all that is done stays, and a training that was
    interrupted goes on.
    """
    state = runs / STATE
    runs.mkdir(parents=True, exist_ok=True)
    done = read_as(state, dict[str, Done], "remove it to start over", missing={}, whole=False)
    dataset: Dataset | None = None
    with progress.task("reproducing", total=len(made.jobs)) as advance:
        for job in made.jobs:
            if job.name not in done or done[job.name].failed:
                began = time.perf_counter()
                advance(0, note=job.name)
                try:
                    if dataset is None or dataset.name != job.dataset:
                        dataset = load(job.dataset, data_dir=data_dir, progress=progress)
                    found = _do(job, dataset, runs, device, progress)
                    write_records(records, found)
                    outcome = Done(time.perf_counter() - began, len(found))
                except (BridgeMemError, torch.OutOfMemoryError) as problem:
                    said = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
                    outcome = Done(time.perf_counter() - began, 0, said)
                done[job.name] = outcome
                write_json(state, {name: vars(one) for name, one in done.items()})
            advance(1)
    return {job.name: done[job.name] for job in made.jobs}


def _do(job: Job, dataset: Dataset, runs: Path, device: str, progress: Progress) -> list[Record]:
    """The records of one job."""
    split = "valid" if dataset.test_start is None else "test"
    if job.work == ("ranks",):
        return ranks(dataset, backbones=[job.backbone], split=split, device=device, progress=progress).records()
    if job.work == ("leakage",):
        kind, own = backbone_class(job.backbone), default_settings(job.backbone, dataset)
        model = kind.fit(dataset.without_test(), own, device=device)
        return [r for r in measure(dataset, model, 0, device, progress) if r.method.startswith("leakage:")]
    residual, *studies = job.work
    made = reproduce(
        dataset,
        runs,
        backbone=job.backbone,
        backbone_settings=_backbone_settings(job, dataset),
        settings=None if job.sampled else Settings(),
        seeds=(job.seed,),
        backbone_seed=job.backbone_seed,
        device=device,
        history="frozen" if job.history == "frozen" else "rolling",
        progress=progress,
        residual=residual,
        learned_settings=as_settings(LearnedSettings, job.learned) if residual == "learned" else None,
    )
    (run,) = made.runs
    return [*made.records, *(r for study in studies for r in _read(study, run, dataset, split, device, progress))]


def _backbone_settings(job: Job, dataset: Dataset) -> Any:
    """The settings that the record notes, where they are still settings; else those of the data set."""
    if job.backbone_settings is not None:
        try:
            return as_settings(type(backbone_class(job.backbone).default), job.backbone_settings)
        except SettingsError:
            pass
    return default_settings(job.backbone, dataset)


def _noted_learning(r: Record) -> dict[str, Any]:
    """The settings of the learned residual that a record notes; of an earlier recipe, those that are left of it."""
    names = [f.name for f in fields(LearnedSettings)] if "train_queries" in r.settings else ["hidden", "cross_fit"]
    return {"cross_fit": r.cross_fit, **{name: r.settings[name] for name in names if name in r.settings}}


def _replaced(r: Record) -> str:
    """Noted settings of the learned residual that cannot be asked for: a default is left to the backbone."""
    plain, noted = LearnedSettings(), _noted_learning(r)
    # a setting that came after the record is not noted
    own = {name: said for name, said in backbone_class(r.backbone).learning.items() if name in noted}
    return ", ".join(f"{name}={noted[name]}" for name in own if noted[name] == getattr(plain, name) != own[name])


def _asks_two(r: Record) -> bool:
    """Whether test asks a second training of its backbone too, next to a learned residual."""
    return r.backbone in BACKBONES and backbone_class(r.backbone).learning.get("renewed") == "on"


def _sampled(r: Record) -> bool:
    # earlier samples were twice as large
    sampled = (SAMPLED.max_examples, 2 * SAMPLED.max_examples)
    return r.method in MAIN[1:] and r.settings.get("transitions") in sampled


def _read(study: str, run: Run, dataset: Dataset, split: str, device: str, progress: Progress) -> list[Record]:
    """The records of one study of a run that was evaluated."""
    name, _, what = study.partition(":")
    if name == "parts" and what != "calibration":
        return parts(run, what, run.relations(), split)
    if name == "ablate":
        return ablate(run, dataset, split, device, progress)
    if name == "ablate-counting":
        return ablate_counting(run, dataset, device, progress)
    if name == "ablate-learned":
        return ablate_learned(run, dataset, split, device, progress)
    if name == "horizon":
        return evaluate_horizon(run, int(what), dataset, split, device, progress)
    if name == "headroom":
        return headroom(run, dataset, split, device, progress)
    if name == "what":
        return evaluate_what(run, dataset, split, progress)
    return reliability_records(run, reliability(run, dataset, split))


def compared(recorded: Iterable[Record], remade: Iterable[Record]) -> Table:
    """Rows that were remade next to what was recorded: MRR, and the difference."""
    again = {_key(r): r for r in remade}
    rows = []
    for r in recorded:
        other = again.get(_key(r))
        if other is None or r.method not in MAIN or r.horizon != 1 or not r.as_chosen or r.filter == "raw":
            continue
        crossed = ", cross-fitted" if r.cross_fit else ""
        label = f"{r.dataset}, {r.backbone}" + ("" if r.method == "backbone" else f" + {r.method}{crossed}")
        cells = [
            f"{label} ({r.seed}), {SHORT[r.filter]}",
            figure(r.mrr),
            figure(other.mrr),
            f"{other.mrr - r.mrr:+.4f}",
        ]
        if cells not in rows:
            rows.append(cells)
    return Table("Recorded and remade, MRR", ["row (seed)", "recorded", "remade", "difference"], rows)


def _key(r: Record) -> tuple[Any, ...]:
    """What a record measures, on whatever device; a backbone alone has no seed but its own."""
    named = (r.dataset, r.split, r.backbone, r.method, r.filter, r.selected_by, r.history, r.subset, r.horizon)
    free = r.backbone in BACKBONES and not is_trained(r.backbone)
    seed = None if r.method == "backbone" and free else r.seed
    return (*named, r.cross_fit, seed)
