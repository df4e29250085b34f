"""The parts of the counting backbone: one record a change and filter, on validation, and what two hops add."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bridgemem.backbones.typed import RecurrenceTyped
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS
from bridgemem.studies.counting import METHOD, PARTNERS, WHOLE, TwoHops, changes
from builders import dataset_of, log_of, random_log
from commands import TINY_READER, bridgemem

pytest_plugins = ("small_runs",)


def test_every_change_changes_the_scores() -> None:
    dataset = dataset_of(random_log(8, n=300))
    whole = RecurrenceTyped.fit(dataset)
    past, queries = Past(dataset.events), Queries.of(dataset.valid)
    made, own = changes(whole, dataset, 42, "cpu"), whole.score(queries, past).log_p
    same = {label for label, one in made.items() if torch.equal(one.score(queries, past).log_p, own)}
    # what was chosen from several values is one of the changes, too
    chosen = {"the last event of the pair alone" if whole.confidence.k == 1 else "the last 16 events of the pair"}
    assert same == chosen | ({"without the times of the triple"} if whole.frequency == 0 else set())


def test_two_hops_lead_to_the_answers_of_the_last_partners() -> None:
    # 0 met 1; 1 visited 2 twice and 3 once, all before step 5
    events = log_of([(0, 0, 1, 0), (1, 1, 2, 1), (1, 1, 2, 2), (1, 1, 3, 3), (2, 0, 3, 6), (2, 0, 3, 7), (2, 0, 3, 9)])
    whole = RecurrenceTyped.fit(dataset_of(events))
    hops = TwoHops(whole.settings, whole.usual, whole.confidence, whole.frequency)
    hops.weight = 1.0
    asked = Queries(*(torch.tensor([value]) for value in (0, 1, 5)))
    past = Past(events)
    added = hops._parts(asked, past)[0] - whole._parts(asked, past)[0]
    assert added[0].tolist() == pytest.approx([0, 0, 2 / 3 / PARTNERS, 1 / 3 / PARTNERS, 0, 0])


def test_the_command_reads_validation_alone(own_csv: Path, tmp_path: Path) -> None:
    run, records = tmp_path / "run", tmp_path / "records.jsonl"
    fitted = bridgemem(
        "fit", "-d", own_csv, "-b", "recurrence-typed", "--residual", "bridgemem", "-o", run, *TINY_READER
    )
    assert fitted.code == 0, fitted.err
    found = bridgemem("ablate", run, "--counting", "--records", records, "--json", "-q").json["records"]
    assert {(r["split"], r["backbone"]) for r in found} == {("valid", "recurrence-typed")}
    assert {r["filter"] for r in found} == set(FILTERS)
    assert all(r["method"].startswith(METHOD) for r in found)
    whole = {r["filter"]: r["mrr"] for r in found if r["method"] == WHOLE}
    for r in found:
        assert r["gain"]["mrr"][0] == pytest.approx(r["mrr"] - whole[r["filter"]], abs=1e-9)
    assert len(records.read_text(encoding="utf-8").splitlines()) == len(found)


def test_another_backbone_is_refused(recurrence_run: Path) -> None:
    said = bridgemem("ablate", recurrence_run, "--counting", "-q").refused()
    assert "--counting takes apart recurrence-typed alone" in said
