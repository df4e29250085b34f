"""Tables of what and whether over all data sets, from their records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import HEADINGS, Table, figure, interval, place
from bridgemem.evaluation.what import MODEL, RULES, WHAT
from bridgemem.evaluation.whether import KIND_WORDS, OccurrenceRecord, read_occurrence_records, skill_cell
from bridgemem.evaluation.whether import RULES as OCCURRENCE_RULES
from bridgemem.ranking.metrics import METRICS

OCCURRENCE = "occurrence.jsonl"  # the records of whether, next to the pages


def what_over_data(records: Sequence[Record], direction: str) -> Table:
    """Plain rules and the relation head on every data set, time-aware."""
    shown = [r for r in records if r.method.startswith(WHAT) and r.filter == "time" and r.subset == direction]
    words, rows = {**RULES, MODEL: "relation head"}, []
    for dataset, split in sorted({(r.dataset, r.split) for r in shown}):
        for name, said in words.items():
            for r in shown:
                if (r.dataset, r.split, r.method) == (dataset, split, f"{WHAT}{name}"):
                    gain = r.settings.get("model_gain")
                    cells = [figure(getattr(r, m)) for m in METRICS]
                    rows.append([f"{place(dataset, split)}, {said}", *cells, interval(gain) if gain else ""])
    note = "Every event is asked once; other events of the two at the step are taken out. Gain: of the relation head."
    header = ["data set, method", *HEADINGS.values(), "gain in MRR [95 %]"]
    return Table(f"What: (s, ?, o), {direction}", header, rows, note)


def read_occurrence(folder: Path) -> list[OccurrenceRecord]:
    """The records of whether next to the pages, where there are any."""
    path = folder / OCCURRENCE
    return read_occurrence_records(path) if path.is_file() else []


def whether_over_data(records: Sequence[OccurrenceRecord]) -> Table:
    """p_event on every data set, by kind of query and horizon."""
    header = ["data set, whether", "steps", "came true", "Brier", "log loss", "skill over persistence [95 %]"]
    header += ["skill over the own rate [95 %]", "ROC AUC", "calibration error", "CRPS", "CRPS of the rate"]
    rows = [
        [
            f"{place(r.dataset, r.split)}, {KIND_WORDS[r.kind]}",
            str(r.horizon),
            f"{r.share:.2%}",
            f"{r.brier:.4f}",
            f"{r.log_loss:.4f}",
            *(skill_cell(r.skill[rule]) for rule in OCCURRENCE_RULES),
            f"{r.auc:.3f}",
            f"{r.ece:.4f}",
            f"{r.crps['head']:.3f}",
            f"{r.crps['rate']:.3f}",
        ]
        for r in sorted(records, key=lambda r: (r.dataset, r.split, list(KIND_WORDS).index(r.kind), r.horizon))
    ]
    note = (
        "At every step, keys that occurred before: does it happen within the steps? Skill: 1 - Brier score / that "
        "of the rule; intervals resample blocks of as many steps, and are rough where a split has "
        "fewer than five such blocks. CRPS: of the time to the next event, up to the horizon."
    )
    return Table("Whether and when", header, rows, note)
