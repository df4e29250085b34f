"""`bridgemem data`: what it says about good files, about bad ones, and what it leaves behind."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG
from bridgemem.events.loading import load
from bridgemem.events.packs import pack, unpack
from bridgemem.events.readers.read import read_events
from commands import Walk, bridgemem, left_in, named_own, planted_rows, small_files_only, write_rows

pytest_plugins = ("small_runs",)
HEADING = "subject,relation,object,time\n"


@pytest.fixture(autouse=True)
def _no_data_sets_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIDGEMEM_DATA", raising=False)
    monkeypatch.setenv("BRIDGEMEM_HOME", str(tmp_path / "home"))


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_list_names_every_data_set_and_the_world() -> None:
    found = bridgemem("data", "list", "--json").json["datasets"]
    assert [row["name"] for row in found] == [*CATALOG, "world"]
    assert {row["found"] for row in found} == {None, "built in"}
    text = bridgemem("data", "list").out
    assert all(name in text for name in CATALOG)


def test_a_good_file_is_called_good(own_csv: Path) -> None:
    found = bridgemem("data", "check", own_csv, "--json").json
    assert (found["events"], found["rejected"], found["rejects"]) == (600, 0, [])
    outcome = bridgemem("data", "check", own_csv)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "Read as plain: subject from subject, relation from relation, object from object, time from time.",
        "All 600 rows were read.",
        "Events: 600; entities: 12, 0 of them once; relations: 5.",
        "From 2024-01-01 to 2024-02-09: 40 steps with events, a step is 1 day.",
        f"Repeated events: {found['repeated']}; events between a name and itself: 0.",
    ]


def test_rejected_rows_are_listed_with_their_lines_and_end_with_code_2(tmp_path: Path) -> None:
    rows = planted_rows()[:20]
    rows[3] = (*rows[3][:3], "yesterday")
    rows[7] = (*rows[7][:3], "-1")
    path = write_rows(tmp_path / "some.csv", rows)
    outcome = bridgemem("data", "check", path)
    assert outcome.code == 2
    assert f"{path}:5: the time 'yesterday'" in outcome.out
    assert f"{path}:9: the time '-1' is not a date as the others are" in outcome.out
    as_json = bridgemem("data", "check", path, "--json")
    assert as_json.code == 2
    assert as_json.out.count("\n") == 1
    assert '"rejected": 2' in as_json.out


def test_a_packed_file_and_the_world_are_checked_too(walk: Walk) -> None:
    assert bridgemem("data", "check", walk.home / "own.npz", "--json").json["events"] == 600


def test_csv_tsv_gz_and_parquet_hold_the_same_events(own_csv: Path, tmp_path: Path) -> None:
    tsv = write_rows(tmp_path / "own.tsv", planted_rows(), "\t")
    packed = tmp_path / "own.csv.gz"
    packed.write_bytes(gzip.compress(own_csv.read_bytes()))
    parquet = tmp_path / "own.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT * FROM read_csv('{own_csv}')) TO '{parquet}' (FORMAT parquet)")
    stats = [bridgemem("data", "stats", path, "--json").json for path in (own_csv, tsv, packed, parquet)]
    assert stats[0] == stats[1] == stats[2] == stats[3]
    assert stats[0]["name"] == "own"
    assert (stats[0]["entities"], stats[0]["relations"], stats[0]["steps"]) == (12, 5, 40)
    assert (stats[0]["first"], stats[0]["last"]) == ("2024-01-01", "2024-02-09")
    assert sum(stats[0]["splits"].values()) == stats[0]["events"] == 600


def test_stats_tell_two_splits_of_the_same_events_apart_by_their_identity(own_csv: Path) -> None:
    plain = bridgemem("data", "stats", own_csv, "--json").json
    other = bridgemem("data", "stats", own_csv, "--split-at", "2024-01-20", "2024-02-01", "--json").json
    assert plain["fingerprint"] == other["fingerprint"]
    assert plain["identity"] == load(own_csv).identity.digest != other["identity"]
    printed = bridgemem("data", "stats", own_csv).out
    assert plain["fingerprint"] in printed
    assert plain["identity"] in printed


def test_import_keeps_the_events_and_splits_them_by_time(own_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "packed.npz"
    found = bridgemem("data", "import", own_csv, "-o", out, "--valid", "0.2", "--test", "0.25", "--json").json
    dataset = unpack(out)
    assert dataset.events.fingerprint == read_events(own_csv).events.fingerprint
    assert [len(dataset.split(name)) for name in ("train", "valid", "test")] == [
        found["splits"][name] for name in ("train", "valid", "test")
    ]
    assert abs(found["splits"]["valid"] - 120) <= 30
    assert abs(found["splits"]["test"] - 150) <= 30
    assert left_in(out.parent) == ["packed.npz"]


def test_import_takes_other_headings_and_a_longer_step(tmp_path: Path) -> None:
    lines = "\n".join(",".join(row) for row in planted_rows())
    path = written(tmp_path / "own.csv", f"who,did,whom,when\n{lines}\n")
    headings = (
        "--subject-column",
        "who",
        "--relation-column",
        "did",
        "--object-column",
        "whom",
        "--time-column",
        "when",
    )
    found = bridgemem("data", "import", path, "-o", tmp_path / "w.npz", *headings, "--step", "7d", "--json").json
    assert found["events"] == 600
    assert len(np.unique(unpack(tmp_path / "w.npz").events.step)) == 6


def test_check_reads_a_file_as_import_does(tmp_path: Path) -> None:
    path = written(
        tmp_path / "e.csv", "who,did,whom,when\n" + "A,r,B,2024-01-01\nB,r,A,2024-01-09\nA,r,B,2024-01-19\n" * 9
    )
    headings = (
        "--subject-column",
        "who",
        "--relation-column",
        "did",
        "--object-column",
        "whom",
        "--time-column",
        "when",
        "--step",
        "7d",
    )
    packed = tmp_path / "e.npz"
    assert "no column for" in bridgemem("data", "check", path).refused()
    assert bridgemem("data", "import", path, "-o", packed, *headings).code == 0
    checked = bridgemem("data", "check", path, *headings, "--json").json
    known = bridgemem("data", "check", packed, "--json").json
    assert known["repeated"] == checked["repeated"] == 24
    assert {**known, "fingerprint": None} == checked
    assert "polecat" in bridgemem("data", "check", path, "--format", "polecat").refused()
    assert (
        "has its columns, names and times already"
        in bridgemem("data", "check", packed, "--subject-column", "who").refused()
    )


@pytest.mark.parametrize(("step", "length"), [((), "1 second"), (("--step", "day"), "1 day")])
def test_the_length_of_a_step_is_said_and_one_that_is_too_fine_is_remarked(
    step: tuple[str, ...], length: str, tmp_path: Path
) -> None:
    rows = [(s, r, o, f"{day}T12:{i // 60 % 60:02d}:{i % 60:02d}") for i, (s, r, o, day) in enumerate(planted_rows())]
    path, packed = write_rows(tmp_path / "own.csv", rows), tmp_path / "own.npz"
    outcomes = [
        bridgemem("data", "check", path, *step),
        bridgemem("data", "import", path, "-o", packed, *step),
        bridgemem("data", "stats", path, *step),
        bridgemem("data", "stats", packed),
        bridgemem("data", "check", packed),
    ]
    for outcome in outcomes:
        assert (outcome.code, f"step is {length}" in outcome.out) == (0, True)
        assert outcome.err.count("--step day") == (not step)


def test_epoch_seconds_are_cut_into_days(tmp_path: Path) -> None:
    rows = [(s, r, o, str(1_704_067_200 + 6000 * i)) for i, (s, r, o, _) in enumerate(planted_rows())]
    path, out = write_rows(tmp_path / "own.csv", rows), tmp_path / "own.npz"
    outcome = bridgemem("data", "import", path, "-o", out)
    assert "--step day" in outcome.err
    assert "Times are read as epoch seconds; --time-format number keeps them as numbers." in outcome.out
    assert "A step is 100 minutes." in outcome.out
    assert bridgemem("data", "import", path, "-o", out, "--force", "--step", "day", "--json").json["step"] == "1 day"
    assert bridgemem("data", "stats", out, "--json").json["first"] == "2024-01-01"


def test_what_is_packed_is_not_imported_again(walk: Walk, tmp_path: Path) -> None:
    packed = walk.home / "own.npz"
    assert "is a packed data set" in bridgemem("data", "import", packed, "-o", tmp_path / "x.npz").refused()


def test_import_replaces_nothing_unless_told_to(own_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.npz"
    command = ("data", "import", own_csv, "-o", out)
    assert bridgemem(*command).code == 0
    before = out.read_bytes()
    assert "--force" in bridgemem(*command, "--test", "0.3").refused()
    assert out.read_bytes() == before
    assert bridgemem(*command, "--test", "0.3", "--force").code == 0
    assert out.read_bytes() != before


def test_import_reports_rejected_rows_and_strict_refuses_them(tmp_path: Path) -> None:
    rows = planted_rows()
    rows[3] = (*rows[3][:3], "yesterday")
    path = write_rows(tmp_path / "some.csv", rows)
    found = bridgemem("data", "import", path, "-o", tmp_path / "some.npz", "--json").json
    assert found["rejected"] == 1
    assert found["rejects"][0]["line"] == 5
    assert "yesterday" in bridgemem("data", "import", path, "-o", tmp_path / "x.npz", "--strict").refused()
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "holds no events"),
        (HEADING, "holds no events"),
        (HEADING + "A,x,B,2024-13-77\nA,x,B,soon\n", "neither a whole number nor a date"),
        ("1,2,3,four\n1,2,3,five\n", "neither a whole number nor a date"),
        (HEADING + "A,x,B,-4\n", "negative"),
        ("subject,object,time\nA,B,2024-01-01\n", "no column for relation"),
    ],
    ids=["empty", "heading only", "no dates", "text for a number", "negative", "three columns"],
)
@pytest.mark.parametrize("command", ["check", "stats", "import"])
def test_files_that_cannot_be_used_are_refused_in_one_sentence(
    command: str, text: str, phrase: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "bad.csv", text)
    extra = ("-o", tmp_path / "bad.npz") if command == "import" else ()
    assert phrase in bridgemem("data", command, path, *extra).refused()
    assert left_in(tmp_path) == ["bad.csv"]


@pytest.mark.parametrize("rows", ["B", "BCDEF"], ids=["one row", "one step"])
def test_what_cannot_be_split_is_checked_but_not_imported(rows: str, tmp_path: Path) -> None:
    path = written(tmp_path / "day.csv", HEADING + "".join(f"A,x,{c},2024-01-01\n" for c in rows))
    found = bridgemem("data", "check", path)
    assert found.code == 0
    assert f"Events: {len(rows)};" in found.out
    assert found.err.startswith("1 step with events cannot be split into train, validation and test; import this")
    for command in (("stats", path), ("import", path, "-o", tmp_path / "day.npz")):
        assert "too few time steps" in bridgemem("data", *command).refused()
    assert left_in(tmp_path) == ["day.csv"]


def test_several_files_and_globs_are_checked_and_imported_alike(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        written(tmp_path / f"day{day}.csv", HEADING + f"A,x,B,2024-01-0{day}\n" * 2)
    found = bridgemem("data", "check", tmp_path / "day*.csv", "--json").json
    assert (found["events"], found["steps"], found["first"], found["last"]) == (6, 3, "2024-01-01", "2024-01-03")
    days = [tmp_path / f"day{day}.csv" for day in (1, 2, 3)]
    assert bridgemem("data", "check", *days, "--json").json == found
    made = bridgemem("data", "import", tmp_path / "day*.csv", "-o", tmp_path / "all.npz", "--json").json
    assert made["events"] == 6
    assert bridgemem("mine", tmp_path / "day?.csv", "-o", tmp_path / "mined", "--json").json["events"] == 6
    written(tmp_path / "day*.csv", HEADING + "A,x,B,2024-05-05\n")
    assert bridgemem("data", "check", tmp_path / "day*.csv", "--json").json["first"] == "2024-05-05"
    assert "none*.csv does not exist" in bridgemem("data", "check", tmp_path / "none*.csv").refused()
    assert "is named twice" in bridgemem("data", "import", days[0], days[0], "-o", tmp_path / "b.npz").refused()


def test_rejected_rows_go_to_a_file_that_can_be_repaired_and_read(tmp_path: Path) -> None:
    rows = "A,x,B,2024-01-01\nA,x,B,soon\nA,x\nNA,x,B,2024-01-02\nB,x,A,2024-01-03\nB,x,A,2024-01-04\n"
    path, out, packed = written(tmp_path / "e.csv", HEADING + rows), tmp_path / "rejects.csv", tmp_path / "e.npz"
    expected = [
        "file,line,reason,subject,relation,object,time,row",
        f"{path},3,the time 'soon' is neither a whole number nor a date; write dates as 2024-01-31,A,x,B,soon,",
        f'{path},4,"expected 4 columns, found 2",,,,,"A,x"',
        f"{path},5,the subject is missing (NA),NA,x,B,2024-01-02,",
    ]
    assert bridgemem("data", "check", path, "--rejects", out).code == 2
    assert out.read_text().splitlines() == expected
    out.unlink()
    made = bridgemem("data", "import", path, "-o", packed, "--rejects", out)
    assert (made.code, made.err) == (0, f"bridgemem: wrote 3 rejected rows to {out}.\n")
    assert out.read_text().splitlines() == expected
    repaired = written(tmp_path / "repaired.csv", out.read_text().replace("soon", "2024-01-02").replace("NA", "C"))
    again = bridgemem("data", "check", repaired, "--rejects", out, "--json").json
    assert (again["events"], again["rejected"]) == (2, 0)
    assert out.read_text().count("\n") == 2  # the line that nobody cut into columns lacks all of them
    assert "holds no rejected rows" in bridgemem("data", "check", path, "--rejects", path).refused()


def test_rows_that_refuse_a_file_are_written_too(tmp_path: Path) -> None:
    path, out = written(tmp_path / "e.csv", HEADING + "A,x,B,soon\n" * 3 + "A,x,B,2024-01-01\n" * 2), tmp_path / "r.csv"
    strict = bridgemem("data", "import", path, "-o", tmp_path / "e.npz", "--strict", "--rejects", out).refused()
    assert strict.endswith(f"The rejected rows are in {out}.")
    assert out.read_text().count("soon") == 6
    assert left_in(tmp_path) == ["e.csv", "r.csv"]


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (("-o", "x.csv"), "must end in .npz"),
        (("-o", "x.npz", "--valid", "1.5"), "between 0 and 1"),
        (("-o", "x.npz", "--valid", "0"), "between 0 and 1"),
        (("-o", "x.npz", "--valid", "nan"), "between 0 and 1"),
        (("-o", "x.npz", "--test", "-0.1"), "between 0 and 1"),
        (("-o", "x.npz", "--valid", "0.6", "--test", "0.6"), "leave room for train"),
        (("-o", "x.npz", "--step", "fortnight"), "not a time step"),
        (("-o", "x.npz", "--step", "0"), "not a time step"),
        (("-o", "x.npz", "--step", "²"), "not a time step"),
        (("-o", "x.npz", "--subject-column", "nobody"), "no column for nobody"),
    ],
)
def test_bad_options_of_import_are_refused(
    options: tuple[str, ...], phrase: str, own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert phrase in bridgemem("data", "import", own_csv, *options).refused()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("command", ["check", "stats"])
def test_an_unknown_data_set_is_named_together_with_the_known_ones(command: str) -> None:
    sentence = bridgemem("data", command, "icews41").refused()
    assert "'icews41'" in sentence
    assert "icews14" in sentence


def test_a_named_data_set_that_is_not_here_comes_with_the_way_to_get_it() -> None:
    assert "bridgemem data download icews14" in bridgemem("data", "stats", "icews14").refused()


def test_packing_or_downloading_an_unknown_name_leaves_no_folder(tmp_path: Path) -> None:
    assert "'nope'" in bridgemem("data", "pack", "nope", "-o", tmp_path / "packed").refused()
    assert "'nope'" in bridgemem("data", "download", "nope").refused()
    assert left_in(tmp_path) == []


def test_the_world_is_packed_as_any_named_data_set(tmp_path: Path) -> None:
    assert bridgemem("data", "pack", "world", "-o", tmp_path).code == 0
    packed = bridgemem("data", "check", tmp_path / "world.npz", "--json").json
    assert packed == bridgemem("data", "check", "world", "--json").json


def test_packing_replaces_a_file_only_when_told(own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, out = tmp_path / "held", tmp_path / "deep" / "out"
    pack(named_own(load(own_csv), "own", monkeypatch), held / "own.npz")
    command = ("data", "pack", "own", "--data-dir", held, "-o", out)
    assert bridgemem(*command).code == 0
    assert left_in(out) == ["own.npz"]
    (out / "own.npz").write_bytes(b"mine")
    assert "--force" in bridgemem(*command).refused()
    assert (out / "own.npz").read_bytes() == b"mine"
    assert bridgemem(*command, "--force").code == 0
    assert unpack(out / "own.npz").events.fingerprint == load(own_csv).events.fingerprint


def test_a_data_set_without_test_is_said_to_have_none(own_csv: Path, tmp_path: Path) -> None:
    events = load(own_csv).events
    pack(Dataset("like-gdelt", events, 30), tmp_path / "like-gdelt.npz")
    outcome = bridgemem("data", "stats", tmp_path / "like-gdelt.npz", "--json")
    assert set(outcome.json["splits"]) == {"train", "valid"}
    assert outcome.remarks == ["like-gdelt has no test split; commands use its validation split instead."]


def test_an_import_that_fills_the_disk_leaves_nothing(own_csv: Path, tmp_path: Path) -> None:
    with small_files_only(1000):
        sentence = bridgemem("data", "import", own_csv, "-o", tmp_path / "own.npz").refused()
    assert "own.npz cannot be written" in sentence
    assert left_in(tmp_path) == []


def test_a_place_that_cannot_be_written_is_one_sentence(own_csv: Path, tmp_path: Path) -> None:
    taken = written(tmp_path / "file", "")
    bridgemem("data", "import", own_csv, "-o", taken / "own.npz").refused()
    assert left_in(tmp_path) == ["file"]


def test_the_world_has_the_sizes_it_promises() -> None:
    found = bridgemem("data", "stats", "world", "--json").json
    assert 40_000 <= found["events"] <= 60_000
    assert found["relations"] == 24
    assert 150 <= found["steps"] <= 250


def test_the_program_starts_without_loading_torch() -> None:
    code = "import sys, bridgemem.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_version_and_usage() -> None:
    import bridgemem as package

    assert bridgemem("--version").out == f"{package.__version__}\n"
    outcome = bridgemem("nonsense")
    assert outcome.code == 2
    assert "No such command 'nonsense'" in outcome.err
    assert "Missing option" in bridgemem("train", "cenet").err
