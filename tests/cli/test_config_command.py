"""Options of serve and explore from the environment and a file: precedence, what is shown, and what is refused."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from commands import bridgemem

pytest_plugins = ("small_runs",)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BRIDGEMEM_")]:
        monkeypatch.delenv(name)


def file_of(folder: Path, text: str) -> Path:
    path = folder / "service.toml"
    path.write_text(text)
    return path


def shown(*words: str | Path) -> dict[str, tuple[object, str]]:
    found = bridgemem("config", "show", *words, "--json").json
    return {one["name"]: (one["value"], one["origin"]) for one in found["settings"]}


def test_the_environment_counts_before_the_file_and_the_file_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, "[serve]\nport = 9001\nconcurrent = 4\n[explore]\nport = 9002\n")
    monkeypatch.setenv("BRIDGEMEM_PORT", "9003")
    found = shown("--config", path)
    assert found["port"] == (9003, "environment")
    assert found["concurrent"] == (4, "file")
    assert found["timeout"] == (15.0, "default")
    monkeypatch.delenv("BRIDGEMEM_PORT")
    assert shown("--config", path)["port"] == (9001, "file")
    assert shown("--config", path, "--command", "explore")["port"] == (9002, "file")
    monkeypatch.setenv("BRIDGEMEM_CONFIG", str(path))
    assert shown()["port"] == (9001, "file")


@pytest.mark.parametrize("source", ["environment", "file", "command line first"])
def test_serve_listens_where_it_is_told(
    recurrence_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        port, unused = (place.getsockname()[1] for place in (taken, other))
        words: tuple[str, ...] = ()
        monkeypatch.setenv("BRIDGEMEM_RUN", str(recurrence_run))
        if source == "environment":
            monkeypatch.setenv("BRIDGEMEM_PORT", str(port))
        elif source == "file":
            words = ("--config", str(file_of(tmp_path, f"[serve]\nport = {port}\n")))
        else:
            monkeypatch.setenv("BRIDGEMEM_PORT", str(unused))
            words = ("--port", str(port))
        assert f"port {port}" in bridgemem("serve", *words).refused()


def test_paths_of_a_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    path = file_of(tmp_path, '[serve]\nrun = "runs/mine"\nstore = "/var/events.duckdb"\n')
    found = shown("--config", path)
    assert found["run"] == (str(tmp_path / "runs/mine"), "file")
    assert found["store"] == ("/var/events.duckdb", "file")


def test_what_is_shown_says_which_variable_sets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGEMEM_LOG_FORMAT", "json")
    lines = bridgemem("config", "show", "--config", file_of(tmp_path, "[serve]\nport = 1\n")).out.splitlines()
    assert any(line.split() == ["log_format", "json", "BRIDGEMEM_LOG_FORMAT"] for line in lines)
    assert any(line.split()[:2] == ["port", "1"] and line.endswith("service.toml") for line in lines)
    assert any(line.split() == ["timeout", "15.0", "default", "(BRIDGEMEM_TIMEOUT)"] for line in lines)


def test_a_token_is_named_by_its_file_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    outcome = bridgemem("config", "show", "--config", file_of(tmp_path, '[serve]\ntoken_file = "token"\n'))
    assert "s3cret" not in outcome.out
    assert str(tmp_path / "token") in outcome.out
    assert (
        "did you mean 'token_file'"
        in bridgemem("config", "show", "--config", file_of(tmp_path, '[serve]\ntoken = "s3cret"\n')).refused()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serve]\nprot = 1\n", "did you mean 'port'?"),
        ("[service]\nport = 1\n", "[serve] and [explore], not 'service'"),
        ("serve = 3\n", "serve must be a table"),
        ('[serve]\nport = "many"\n', "port in [serve] cannot be 'many'"),
        ("[serve]\nport = 70000\n", "port in [serve] cannot be 70000"),
        ("[serve]\nport = true\n", "port in [serve] cannot be True"),
        ("[serve]\nport = [1]\n", "must be one value"),
        ('[serve]\nlog_level = "loud"\n', "log_level in [serve] cannot be 'loud'"),
        ("[serve\n", "is not valid TOML"),
    ],
    ids=["option", "table", "no-table", "type", "range", "switch", "list", "choice", "toml"],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = file_of(tmp_path, text)
    for words in (("serve", "none"), ("config", "show")):
        refusal = bridgemem(*words, "--config", path).refused()
        assert said in refusal
        assert "service.toml" in refusal


def test_a_variable_that_cannot_be_used_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGEMEM_CONCURRENT", "many")
    assert "BRIDGEMEM_CONCURRENT cannot be 'many'" in bridgemem("serve", "none").refused()
    assert "BRIDGEMEM_CONCURRENT cannot be 'many'" in bridgemem("config", "show").refused()
    assert "there is no run" in bridgemem("serve", "none", "--concurrent", "3").refused()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no settings file" in bridgemem("serve", "none", "--config", tmp_path / "none.toml").refused()


def test_a_switch_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("--command", "explore")["browser"] == (True, "default")
    monkeypatch.setenv("BRIDGEMEM_BROWSER", "false")
    assert shown("--command", "explore")["browser"] == (False, "environment")


def test_empty_variables_are_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGEMEM_PORT", "")
    assert shown()["port"] == (8008, "default")
    assert json.dumps(shown()["store"]) == '[null, "default"]'


def test_issuing_is_off_and_switched_on_by_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown()["issue"] == (False, "default")
    assert shown("--config", file_of(tmp_path, "[serve]\nissue = true\n"))["issue"] == (True, "file")
    monkeypatch.setenv("BRIDGEMEM_ISSUE", "1")
    assert shown()["issue"] == (True, "environment")


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("BRIDGEMEM_PORTT", "BRIDGEMEM_PORT"),
        ("BRIDGEMEM_TOKENFILE", "BRIDGEMEM_TOKEN_FILE"),
        ("BRIDGEMEM_DATA_DIR", "BRIDGEMEM_DATA"),
    ],
)
def test_a_mistyped_variable_is_refused_with_the_one_that_was_meant(
    mistyped: str, meant: str, recurrence_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mistyped, "9")
    for command in (("config", "show"), ("serve", recurrence_run)):
        assert f"no option is read from {mistyped}; did you mean {meant}?" in bridgemem(*command).refused()


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT_8008_TCP", "PORT_8008_TCP_ADDR", "UNPACK_LIMIT", "HOME"):
        monkeypatch.setenv(f"BRIDGEMEM_{name}", "9")
    assert shown()["port"] == (8008, "default")
