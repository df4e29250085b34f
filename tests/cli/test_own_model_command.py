"""`bridgemem new-backbone` and models in a file: from nothing to the table, a trained folder, a run, and mistakes."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgemem.backbones import REGISTERED
from commands import ACTORS, TINY_READER, bridgemem, planted_rows, write_rows

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "own-model.md"


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each command starts a process of its own, where nothing is registered."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    REGISTERED.clear()
    yield
    REGISTERED.clear()


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("own") / "own.csv", planted_rows())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    assert bridgemem("new-backbone", tmp_path / "mymodel.py").code == 0
    return tmp_path / "mymodel.py"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_template_is_measured_in_one_table(csv: Path, model: Path, tmp_path: Path) -> None:
    found = tmp_path / "records.jsonl"
    done = bridgemem("evaluate", csv, "-b", f"{model}:MyModel", *TINY_READER, "--records", found, "-q")
    assert done.code == 0, done.err
    rows = [line.split("  ")[0] for line in done.out.splitlines()]
    assert rows[rows.index("my-model") :][:2] == ["my-model", "my-model + bridgemem"]
    assert {"most-frequent", "recurrence-dyadic"} < set(rows)
    assert "[+" in done.out or "[-" in done.out
    assert {"recurrence-typed", "recurrence-typed + learned"} & set(rows)
    assert f"Next: bridgemem check-backbone {csv} -b {model}:MyModel" in done.out
    assert {json.loads(line)["backbone"] for line in found.read_text().splitlines()} == {"my-model"}


def test_a_function_in_a_file_is_measured_and_printed_as_json(csv: Path, tmp_path: Path) -> None:
    file, size = tmp_path / "plain.py", len(ACTORS)
    file.write_text(
        f"import numpy as np\n\ndef flat(actor, relation, step):\n    return np.zeros((len(actor), {size}))\n"
    )
    found = bridgemem("evaluate", csv, "-b", f"{file}:flat", *TINY_READER, "--json").json["records"]
    assert {"flat", "most-recent"} < {record["backbone"] for record in found}
    # all candidates tie, so that the answer has the mean rank under every query
    (raw,) = [r for r in found if (r["backbone"], r["method"], r["filter"]) == ("flat", "backbone", "raw")]
    assert raw["mrr"] == pytest.approx(2 / (size + 1))


def test_a_trained_folder_and_a_run_are_used_with_the_class_given_again(csv: Path, model: Path, tmp_path: Path) -> None:
    own = f"{model}:MyModel"
    assert bridgemem("train", own, "-d", csv, "-o", tmp_path / "trained", "-q").code == 0
    REGISTERED.clear()
    said = bridgemem("fit", "-d", csv, "-b", tmp_path / "trained", "-o", tmp_path / "run", *TINY_READER).refused()
    assert "'my-model' (class MyModel)" in said
    assert "--register FILE.py:CLASS" in said
    made = bridgemem(
        "--register", own, "evaluate", csv, "-b", tmp_path / "trained", "--split", "valid", *TINY_READER, "-q"
    )
    assert made.code == 0, made.err
    REGISTERED.clear()
    done = bridgemem(
        "--register", own, "fit", "-d", csv, "-b", tmp_path / "trained", "-o", tmp_path / "run", *TINY_READER, "-q"
    )
    assert f"Next: bridgemem --register {own} evaluate" in done.out
    REGISTERED.clear()
    assert "give its class again" in bridgemem("evaluate", tmp_path / "run", "-q").refused()
    assert bridgemem("--register", own, "evaluate", tmp_path / "run", "-q").code == 0
    REGISTERED.clear()
    assert "--register FILE.py:CLASS" in bridgemem("audit", tmp_path / "run", "-q").refused(), (
        "which is no failed check"
    )
    said = bridgemem("evaluate", tmp_path / "run", "-b", own).refused()
    assert "is a run, which has its backbone; leave -b out" in said


def test_the_file_to_start_from_is_not_written_over(model: Path) -> None:
    model.write_text("mine = 1\n")
    assert "exists already; choose another name, or use --force" in bridgemem("new-backbone", model).refused()
    assert model.read_text() == "mine = 1\n"
    made = bridgemem("new-backbone", model, "--force", "--json").json
    assert made["backbone"] == f"{model}:MyModel"
    assert "class MyModel" in model.read_text()
    assert "ends in .py" in bridgemem("new-backbone", model.with_suffix("")).refused()


def test_the_page_shows_the_template_as_it_is_written(model: Path) -> None:
    if not DOCUMENT.is_file():
        pytest.skip("needs docs/ of the repository")
    assert f"```python\n{model.read_text()}```" in DOCUMENT.read_text(encoding="utf-8")


def test_the_network_of_the_page_is_measured(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not DOCUMENT.is_file():
        pytest.skip("needs docs/ of the repository")
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "class Bilinear" in block]
    (tmp_path / "events.csv").write_bytes(csv.read_bytes())
    monkeypatch.chdir(tmp_path)
    shown = runpy.run_path(str(write(tmp_path / "page.py", block)))
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("B")]
    assert rows == ["Bilinear", "Bilinear + bridgemem", "Bilinear + learned"]
    assert len(shown["frame"]) == len(shown["found"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "DATA", "-b", "missing.py:MyModel"), "there is no file missing.py; `bridgemem new-backbone"),
        (("evaluate", "DATA", "-b", "MODEL:MyModl"), "has no 'MyModl', as in MODEL:MyModel"),
        (("evaluate", "DATA", "-b", "MODEL"), "name the class in MODEL too"),
        (("evaluate", "DATA", "-b", "nothing"), "there is no folder and no backbone called 'nothing'"),
        (("evaluate", "DATA", "-b", "MODEL:MyModel", "--workers", "2"), "are for runs; leave them out"),
        (("evaluate", "DATA", "-b", "MODEL:MyModel", "--residual", "fixed"), "residual is bridgemem or learned"),
        (("evaluate", "DATA"), "is not a run folder; to measure a model on data use -b"),
        (("evaluate", "world"), "is not a run folder; to measure a model on data use -b"),
        (("evaluate", "DATA", "--seed", "3"), "are for a model on data; name it with -b"),
        (("--register", "my-model", "backbones", "list"), "--register takes FILE.py:CLASS"),
        (("--register", "missing.py:A", "backbones", "list"), "there is no file missing.py"),
        (("--register", "MODEL:Queries", "backbones", "list"), "does not derive from bridgemem.Backbone"),
    ],
    ids=[
        "no file",
        "no class",
        "not named",
        "no name",
        "workers",
        "residual",
        "no model",
        "world",
        "seed",
        "no register",
        "register no file",
        "register no backbone",
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], said: str, csv: Path, model: Path) -> None:
    places = {"DATA": str(csv), "MODEL": str(model)}
    meant = [word.replace("DATA", places["DATA"]).replace("MODEL", places["MODEL"]) for word in words]
    assert said.replace("MODEL", places["MODEL"]) in bridgemem(*meant).refused()


# ---- leaks ---------------------------------------------------------------------------------------------------------

TABLE = """import torch
from bridgemem.events.queries import Queries


class Table(torch.nn.Module):
    def __init__(self, data):
        super().__init__()
        self.events, self.size = data.{events}, data.events.n_entities

    def forward(self, actor, relation, step):
        facts = Queries.of(self.events)
        same = (facts.actor == actor[:, None]) & (facts.relation == relation[:, None]){at}
        return torch.zeros(len(actor), self.size).index_add(1, facts.answer, same.float()).log1p()
"""


def test_a_model_in_a_file_is_checked_by_training_it_again(csv: Path, tmp_path: Path) -> None:
    honest = write(tmp_path / "honest.py", TABLE.format(events="train", at=""))
    shown = bridgemem("check-backbone", csv, "-b", f"{honest}:Table", "-q")
    assert (shown.code, shown.out.splitlines()[-1]) == (0, "pass"), shown.out
    leaking = write(tmp_path / "leaking.py", TABLE.format(events="events", at=" & (facts.step == step[:, None])"))
    caught = bridgemem("check-backbone", csv, "-b", f"{leaking}:Table", "-q")
    assert (caught.code, caught.out.splitlines()[-1]) == (1, "fail"), caught.out
    assert "NOT SHOWN  training: it reads its own table of events at the step t" in caught.out
    found = bridgemem("check-backbone", csv, "-b", f"{leaking}:Table", "--no-retrain", "--json").json
    assert (found["passed"], found["word"]) == (None, "nothing failed, 2 not checkable")


def test_names_and_folders_are_checked_too(csv: Path, tmp_path: Path) -> None:
    assert bridgemem("check-backbone", csv, "-b", "hri").out.splitlines()[-1] == "pass"
    bridgemem("check-backbone", csv, "-b", "nobody").refused()
    bridgemem("check-backbone", csv, "-b", "hri", "--set", "nothing=1").refused()


def test_what_queries_give_away_is_measured_for_a_model_in_a_file(csv: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "honest.py", TABLE.format(events="train", at=""))
    found = bridgemem("leakage", csv, "-b", f"{file}:Table", "--json").json["records"]
    assert {one["backbone"] for one in found} == {"Table"}
    assert {one["method"] for one in found} == {"backbone", "leakage:pass", "leakage:step"}


def test_an_audit_trains_a_class_of_ones_own_again_on_request(csv: Path, model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = bridgemem("fit", "-d", csv, "-b", f"{model}:MyModel", "-o", run, *TINY_READER)
    again = ("--register", f"{model}:MyModel")
    assert f"Next: bridgemem {' '.join(again)} evaluate" in made.out, made.err
    assert bridgemem(*again, "evaluate", run).code == 0
    plain = bridgemem(*again, "audit", run, "--steps", "1")
    assert plain.out.splitlines()[-1].startswith("nothing failed"), plain.out
    assert "that it has no table of its own is its maker's word" in plain.out
    assert "not checkable  training: its note says that it was given the train split" in plain.out
    assert "the backbone was trained on" not in plain.out
    whole = bridgemem(*again, "audit", run, "--steps", "1", "--retrain")
    assert "shown  trained again: trained 8 times" in whole.out
    assert (whole.code, whole.out.splitlines()[-1]) == (0, "pass"), whole.out
