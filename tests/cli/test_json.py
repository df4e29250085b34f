"""--json: one object of a declared shape from every command, and errors as JSON on standard error."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.json_page import PAGE, filled
from typer.main import get_command

from bridgemem import __version__
from bridgemem.cli import checks, output
from bridgemem.cli.main import app
from bridgemem.cli.schemas import DOCUMENTS
from bridgemem.client import ServiceError
from bridgemem.errors import BridgeMemError
from bridgemem.live.storefile import StoreError
from commands import bridgemem, document

pytest_plugins = ("small_runs",)
ASKED = ("--subject", "Arvan", "--relation", "visit")


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, found in group.commands.items():
        yield from commands(found, f"{before}{name} ") if hasattr(found, "commands") else [(f"{before}{name}", found)]


def page() -> str:
    if not PAGE.is_file():
        pytest.skip("needs docs/how-to/json.md of the repository")
    return PAGE.read_text(encoding="utf-8")


def test_every_command_with_json_has_a_schema() -> None:
    listed = {name for name, found in commands(get_command(app)) for p in found.params if "--json" in p.opts}
    assert listed == set(DOCUMENTS)


def test_the_page_is_what_the_schemas_give() -> None:
    assert filled(page()) == page(), "write it anew: python -m tools.json_page"


def test_the_page_lists_the_codes_of_all_errors() -> None:
    def kinds(kind: type[BridgeMemError]) -> Iterator[type[BridgeMemError]]:
        yield kind
        for one in kind.__subclasses__():
            yield from kinds(one)

    # both are imported here, or their codes would depend on what ran before
    assert {StoreError, ServiceError} <= set(kinds(BridgeMemError))
    others = {"usage", "file", "interrupted", "out_of_memory", "internal"}
    codes = {kind.code for kind in kinds(BridgeMemError)} | others
    table = page().split("| code |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == codes


def test_a_forecast_repeats_its_query_and_says_what_the_probability_means(recurrence_run: Path) -> None:
    found = bridgemem("forecast", recurrence_run, *ASKED, "--top", "2", "--json").json
    assert list(found)[:2] == ["command", "version"]
    assert (found["command"], found["version"]) == ("forecast", __version__)
    assert [found[name] for name in ("subject", "relation", "object", "time")] == ["Arvan", "visit", None, "2024-02-10"]
    assert found["meaning"] == "Probability: that the partner is this one, given that such an event happens."
    assert all(0 < candidate["p_given_event"] < 1 for candidate in found["candidates"])
    week = bridgemem("forecast", recurrence_run, *ASKED, "--horizon", "7", "--json").json
    assert (week["time"], week["until"], week["horizon"]) == ("2024-02-10", "2024-02-16", 7)
    assert "within 7 steps" in week["meaning"]


def test_a_file_of_answers_is_told_in_the_same_words(recurrence_run: Path, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("subject,relation\nArvan,visit\n")
    queries = ("--queries", tmp_path / "q.csv", "--out", tmp_path / "a.csv", "--json")
    found = bridgemem("forecast", recurrence_run, *queries).json
    assert (found["queries"], found["rows"], found["out"]) == (1, 10, str(tmp_path / "a.csv"))
    assert found["meaning"].startswith("Probability: that the partner")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--subject", "Arvna", "--relation", "visit"), "not_found", "did you mean 'Arvan'"),
        (("--subject", "Arvan", "--relatoin", "visit"), "usage", "--relatoin"),
        (("--subject", "Arvan", "--relation", "visit", "--top", "few"), "usage", "--top"),
        (("--subject", "Arvan", "--relation", "visit", "--top", "0"), "bad_setting", "top must be at least 1"),
        (("--subject", "Arvan", "--relation", "visit", "--at", "never"), "bad_data", "'never'"),
        (("--relation", "visit"), "bad_setting", "ask with --subject or --object"),
    ],
)
def test_errors_are_one_json_line_with_a_code(
    args: tuple[str, ...], code: str, said: str, recurrence_run: Path
) -> None:
    outcome = bridgemem("forecast", recurrence_run, *args, "--json")
    assert outcome.code == 2
    assert outcome.failure.code == code
    assert said in outcome.failure.error


def test_a_command_that_does_not_exist_is_a_json_error_too() -> None:
    assert bridgemem("frobnicate", "--json").failure.code == "usage"
    assert bridgemem("data", "frobnicate", "--json").failure.code == "usage"
    assert "choose from demo," in bridgemem("schema", "serve", "--json").failure.error


def test_what_the_system_refuses_has_a_code(recurrence_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/mine")

    monkeypatch.setattr("bridgemem.studies.compare.compare_runs", full)
    outcome = bridgemem("compare", recurrence_run, recurrence_run, "--json")
    assert (outcome.code, outcome.failure.code) == (2, "file")
    assert outcome.failure.error == "No space left on device (runs/mine)."


def test_unforeseen_errors_have_a_code() -> None:
    from bridgemem.cli.main import _unexpected

    assert _unexpected(RuntimeError("a bug"))[0] == "internal"
    assert _unexpected(MemoryError())[0] == "out_of_memory"


def test_remarks_next_to_a_document_are_json_lines(own_csv: Path, tmp_path: Path) -> None:
    rows = own_csv.read_text().splitlines()
    rows[4] = "Arvan,visit,Kel,yesterday"
    (tmp_path / "some.csv").write_text("\n".join(rows))
    outcome = bridgemem("data", "stats", tmp_path / "some.csv", "--json")
    (remark,) = outcome.remarks
    assert remark.startswith("1 of 600 rows was rejected")
    assert outcome.json["events"] == 599


def test_a_check_that_finds_something_prints_its_document_and_exits_with_2(own_csv: Path, tmp_path: Path) -> None:
    rows = own_csv.read_text().splitlines()
    (tmp_path / "some.csv").write_text("\n".join([*rows, "Arvan,visit,Kel,yesterday"]))
    outcome = bridgemem("data", "check", tmp_path / "some.csv", "--json")
    assert outcome.code == 2
    assert document(outcome.out)["rejected"] == 1


def test_numbers_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": np.int64(3), "b": np.float32(0.5), "c": np.array([1, 2]), "d": float("inf"), "e": np.float64("nan")}
    output.emit(value, True, lambda: None)
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in value} == {"a": 3, "b": 0.5, "c": [1, 2], "d": None, "e": None}


def test_progress_never_mixes_with_json_lines(monkeypatch: pytest.MonkeyPatch, recurrence_run: Path) -> None:
    seen: list[bool] = []
    original = checks.terminal_progress

    def noted(*, quiet: bool = False) -> Any:
        seen.append(quiet)
        return original(quiet=True)

    monkeypatch.setattr(checks, "terminal_progress", noted)
    bridgemem("audit", recurrence_run, "--split", "valid", "--steps", "1", "--json")
    bridgemem("audit", recurrence_run, "--split", "valid", "--steps", "1")
    assert seen == [True, False]


def test_schema_prints_what_validates_a_document() -> None:
    found = bridgemem("schema", "data", "list", "--json").json
    assert found["document"]["properties"]["datasets"]["type"] == "array"
    assert found["document"]["additionalProperties"] is False
    assert "error" in json.dumps(found["stderr"])
    assert json.loads(bridgemem("schema", "forecast").out)["document"]["anyOf"]
