"""Compare anything: rows, runs, seeds and baselines on the same queries, with corrected p-values; ranks as a frame."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.errors import BridgeMemError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.ranking.intervals import holm, seeded_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table, write_table
from bridgemem.studies.ranks import Ranks
from commands import bridgemem

pytest_plugins = ("small_runs",)


@pytest.fixture(scope="module")
def run(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(recurrence_run, tmp_path_factory.mktemp("any") / "a")
    evaluate(Run(folder))
    return Path(folder)


@pytest.fixture(scope="module")
def seeds(run: Path) -> list[str]:
    """The run and two others that differ a little, as if by their seeds."""
    made, random = [str(run)], np.random.default_rng(4)
    for number in range(2):
        other = Path(shutil.copytree(run, run.parent / f"seed{number}"))
        table = read_table(run.ranks_path("test") if isinstance(run, Run) else Run(run).ranks_path("test"))
        worse = {k: np.maximum(1, v + random.integers(-1, 2, len(v))) for k, v in table.items() if "bridgemem" in k}
        write_table(Run(other).ranks_path("test"), table | worse)
        made.append(str(other))
    return made


def steps_and_ranks(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return np.repeat(np.arange(20), n // 20), random.integers(1, 30, n).astype(float)


def test_equal_methods_have_no_difference_and_a_p_of_one() -> None:
    step, ranks = steps_and_ranks()
    for gain, p in seeded_gains([ranks], [ranks], step).values():
        assert (gain.value, gain.low, gain.high, p) == (0, 0, 0, 1)


def test_a_method_that_is_better_on_every_day_has_a_small_p() -> None:
    step, ranks = steps_and_ranks()
    gain, p = seeded_gains([ranks], [np.maximum(1, ranks - 3)], step)["mrr"]
    assert 0 < gain.low < gain.value < gain.high
    assert p < 0.01


def test_seeds_that_disagree_widen_the_interval() -> None:
    """The same mean gain, from seeds that agree and from one that gains all of it."""
    step, ranks = steps_and_ranks()
    better = np.maximum(1, ranks - 3)
    agree = seeded_gains([ranks], [better, better], step)["hits10"][0]
    disagree = seeded_gains([ranks], [np.maximum(1, ranks - 6), ranks], step)["hits10"][0]
    assert disagree.high - disagree.low > agree.high - agree.low


def test_holm_never_lowers_a_p_and_keeps_their_order() -> None:
    p = [0.04, 0.001, 0.2, 0.03]
    corrected = holm(p)
    assert corrected == pytest.approx([0.09, 0.004, 0.2, 0.09])
    assert holm([]) == []


def test_a_row_is_compared_with_a_baseline_that_nothing_was_fitted_on(run: Path) -> None:
    made = bm.compare(f"{run}:bridgemem", "recurrence-dyadic", "hri")
    pairs = [(d.a, d.b) for d in made.differences if (d.filter, d.metric) == ("time", "mrr")]
    assert pairs == [("a:bridgemem", "recurrence-dyadic"), ("a:bridgemem", "hri")]
    own = Metrics.of(read_table(Run(run).ranks_path("test"))["rank_time.bridgemem.time"]).mrr
    for d in made.differences:
        assert d.p <= d.p_holm
        if (d.filter, d.metric) == ("time", "mrr"):
            assert d.first == own
            assert d.gain.value == pytest.approx(d.second - d.first)
    hri = bm.ranks(Run(run).dataset, backbones=["hri"])
    (found,) = (d for d in made.differences if (d.b, d.filter, d.metric) == ("hri", "time", "mrr"))
    assert found.second == hri.metrics("hri").mrr


def test_all_pairs_are_compared_where_that_is_asked_for(run: Path) -> None:
    made = bm.compare(f"{run}:bridgemem", f"{run}:backbone", "most-frequent", all_pairs=True)
    assert len([d for d in made.differences if (d.filter, d.metric) == ("time", "mrr")]) == 3


def test_seeds_of_one_method_are_averaged(seeds: list[str]) -> None:
    made = bm.compare(f"{seeds[0]}:backbone", ",".join(seeds) + ":bridgemem")
    (mrr,) = (d for d in made.differences if (d.filter, d.metric) == ("time", "mrr"))
    assert (mrr.seeds_a, mrr.seeds_b) == (1, 3)
    each = [bm.ranks(one).metrics("bridgemem").mrr for one in seeds]
    assert mrr.second == pytest.approx(float(np.mean(each)))
    assert "seeds" in made.table().note


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("RUN",), "at least two"),
        (("recurrence", "RUN"), "the first to compare is a run"),
        (("RUN", "nowhere"), "no backbone called"),
        (("RUN:magic", "hri"), "no row 'magic'"),
        (("RUN", "cenet"), "trained first"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(run: Path, given: tuple[str, ...], said: str) -> None:
    with pytest.raises(BridgeMemError, match=said):
        bm.compare(*(one.replace("RUN", str(run)) for one in given))


def test_runs_of_other_queries_are_refused(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    table = read_table(Run(run).ranks_path("test"))
    write_table(Run(other).ranks_path("test"), {name: column[1:] for name, column in table.items()})
    with pytest.raises(BridgeMemError, match="different queries"):
        bm.compare(str(run), f"{other}:backbone")


def test_ranks_are_a_frame_by_name(run: Path) -> None:
    found = bm.ranks(run, backbones=["popularity"])
    frame, table = found.named(), read_table(Run(run).ranks_path("test"))
    dataset = Run(run).dataset
    names, relations = dataset.entities, dataset.relations
    assert len(frame["subject"]) == 2 * len(dataset.test)
    for i in (0, 1, len(frame["subject"]) - 1):
        relation = int(table["relation"][i])
        ends = names[int(table["actor"][i])], names[int(table["answer"][i])]
        asked = "object" if relation < len(relations) else "subject"
        assert frame["asked"][i] == asked
        assert (frame["subject"][i], frame["object"][i]) == (ends if asked == "object" else ends[::-1])
        assert frame["relation"][i] == relations[relation % len(relations)]
        assert frame["time.backbone"][i] == table["rank_time.backbone"][i]
    assert {"time.popularity", "static.bridgemem", "time"} <= set(frame)
    assert isinstance(found, Ranks)
    assert len(found.to_frame()) >= len(frame["subject"]) or isinstance(found.to_frame(), dict)


def test_a_baseline_ranks_as_the_run_of_the_same_backbone_does(run: Path) -> None:
    alone = bm.ranks(Run(run).dataset, backbones=["recurrence"])
    np.testing.assert_array_equal(alone.of("recurrence"), bm.ranks(run).of("backbone"))


def test_a_baseline_does_not_see_what_comes_after_its_queries(run: Path) -> None:
    """The ranks of validation are the same, whatever test holds."""
    dataset = Run(run).dataset
    cut = bm.Dataset(dataset.name, dataset.without_test().events, dataset.valid_start, None)
    whole = bm.ranks(dataset, backbones=["hri"], split="valid")
    np.testing.assert_array_equal(whole.of("hri"), bm.ranks(cut, backbones=["hri"], split="valid").of("hri"))


def test_data_alone_needs_a_baseline(own_csv: Path) -> None:
    with pytest.raises(BridgeMemError, match="at least one backbone"):
        bm.ranks(own_csv)


def test_the_commands_print_and_write_tables(run: Path, own_csv: Path, tmp_path: Path) -> None:
    made = bridgemem("compare", f"{run}:bridgemem", "recurrence-dyadic", "hri", "-o", tmp_path / "c.tex")
    assert made.code == 0, made.err
    assert "p (Holm)" in made.out
    latex = (tmp_path / "c.tex").read_text(encoding="utf-8")
    assert "\\toprule" in latex
    assert latex.count("\\begin{table}") == latex.count("\\end{table}") == 2
    figures = bridgemem("compare", f"{run}:bridgemem", "hri", "--metric", "hits@1", "-o", tmp_path / "c.csv")
    assert figures.code == 0, figures.err
    with (tmp_path / "c.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert {row["metric"] for row in rows} == {"mrr", "hits@1", "hits@3", "hits@10"}
    assert float(rows[0]["gain.low"]) <= float(rows[0]["gain.value"]) <= float(rows[0]["gain.high"])
    records = tmp_path / "records.jsonl"
    ranked = bridgemem(
        "ranks", own_csv, "-b", "hri", "-b", "recurrence", "-o", tmp_path / "r.csv", "--records", records, "--json"
    )
    assert ranked.code == 0, ranked.err
    document = json.loads(ranked.out)
    assert {row["row"] for row in document["rows"]} == {"hri", "recurrence"}
    with (tmp_path / "r.csv").open(encoding="utf-8") as handle:
        assert len(list(csv.DictReader(handle))) == document["queries"]
    assert len(records.read_text(encoding="utf-8").splitlines()) == 6


def test_a_file_of_no_kind_is_refused_before_anything_is_ranked(run: Path, tmp_path: Path) -> None:
    made = bridgemem("compare", str(run), "hri", "-o", tmp_path / "c.docx")
    assert made.code == 2
    assert ".tex, .csv, .md or .json" in made.err
    made = bridgemem("ranks", str(run), "-o", tmp_path / "r.xlsx")
    assert made.code == 2
    assert ".csv or .parquet" in made.err
