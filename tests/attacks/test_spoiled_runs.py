"""Every file and value of a run folder spoiled: each command that reads it works, or refuses it in one sentence.

BRIDGEMEM_SWEEP=1 tries every spoiling there is, which takes hours; a larger number tries every so manieth.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridgemem.errors import BridgeMemError
from bridgemem.evaluation.card import card
from bridgemem.hub import check_run
from bridgemem.runs import Run
from commands import TINY_READER, Outcome, Walk, bridgemem, write_rows
from fits import loaded
from spoiling import Spoiling, claimed_table, spoiled, spoilings

pytest_plugins = ("small_runs",)

EVERY = int(os.environ.get("BRIDGEMEM_SWEEP", "1499"))
ASKED = ("--subject", "Kel", "--relation", "visit")
LEARNED = ("--residual", "learned", "--learned-set", "epochs=1", "--learned-set", "hidden=8")
BY = ("support", "uncertainty", "repeat", "recency", "relation")
DIGITS, HEX = "5,000 digits", "hex of 5,000 digits"
NOTE, PART = "shards/test-00001-of-00002.json", "shards/test-00001-of-00002.parquet"
BACKBONE = "backbone/weights.safetensors"


@pytest.fixture(scope="session")
def whole(walk: Walk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has everything: own data, a trained backbone, both residuals, figures, and parts to be joined."""
    home = tmp_path_factory.mktemp("whole")
    run, packed = home / "run", walk.home / "own.npz"
    for args in (
        ("fit", "-d", packed, "-b", walk.backbone, "-o", run, *TINY_READER, *LEARNED),
        ("evaluate", run),
        ("evaluate", run, "--shard", "1/2"),
        ("evaluate", run, "--shard", "2/2"),
    ):
        outcome = bridgemem(*args)
        assert outcome.code == 0, outcome.err
    return run


@pytest.fixture(scope="session")
def refreshed(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after new events, with a new entity and a new relation, were refreshed into it."""
    home = tmp_path_factory.mktemp("refreshed")
    news = write_rows(
        home / "new.csv", [("Newcomer", "visit", "Lor", "2024-02-11"), ("Kel", "greet", "Lor", "2024-02-11")]
    )
    assert bridgemem("ingest", home / "store.duckdb", news, "--run", whole).code == 0
    made = bridgemem("refresh", whole, "--store", home / "store.duckdb", "-o", home / "run")
    assert made.code == 0, made.err
    return home / "run"


# ---- what reads a run ----------------------------------------------------------------------------------------------


def refusable(read: Callable[[Run], object]) -> Callable[[Path, Path], Outcome]:
    """A function of Python as the command that it is a part of."""

    def ended(run: Path, whole: Path) -> Outcome:
        try:
            read(Run(run))
        except BridgeMemError as problem:
            return Outcome(2, "", f"bridgemem: {problem}\n")
        return Outcome(0, "", "")

    return ended


def served(run: Run) -> None:
    """The service over the run, asked for its model, a forecast and an explanation."""
    pytest.importorskip("fastapi", reason="needs the extra 'serve'")
    pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")
    from starlette.testclient import TestClient

    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.forecasting import LiveForecaster
    from bridgemem.service.app import create_app

    with EventStore(run.folder.with_suffix(".duckdb")) as store:
        client = TestClient(create_app(LiveForecaster(loaded(run), store)), raise_server_exceptions=False)
        asked = {"subject": "Kel", "relation": "visit"}
        answers = [client.get("/v1/model"), client.post("/v1/forecast", json=asked)]
        answers.append(client.post("/v1/explain", json={**asked, "object": "Lor"}))
    for answer in answers:
        assert answer.status_code in (200, 404, 422, 503), answer.text


def command(*args: str) -> Callable[[Path, Path], Outcome]:
    """A command; RUN stands for the spoiled run, WHOLE for the one it was copied from, NEW for a name that is free."""

    def ended(run: Path, whole: Path) -> Outcome:
        places = {"RUN": run, "WHOLE": whole, "NEW": run.with_name("new"), "BACKBONE": run / "backbone"}
        return bridgemem(*(places.get(arg, arg) for arg in args))

    return ended


READERS: dict[str, Callable[[Path, Path], Outcome]] = {
    "evaluate": command("evaluate", "RUN"),
    "evaluate valid": command("evaluate", "RUN", "--split", "valid"),
    "evaluate within": command("evaluate", "RUN", "--horizon", "2"),
    "shard": command("evaluate", "RUN", "--shard", "1/2"),
    "join": command("evaluate", "RUN", "--join"),
    "forecast": command("forecast", "RUN", *ASKED),
    "forecast learned": command("forecast", "RUN", *ASKED, "--residual", "learned", "--json"),
    "forecast within": command("forecast", "RUN", *ASKED, "--horizon", "3", "--residual", "bridgemem"),
    "explain": command("explain", "RUN", *ASKED, "--object", "Lor", "--residual", "bridgemem"),
    "explain learned": command("explain", "RUN", *ASKED, "--object", "Lor", "--residual", "learned"),
    "audit": command("audit", "RUN"),
    "audit valid": command("audit", "RUN", "--split", "valid"),
    "compare": command("compare", "RUN", "WHOLE"),
    "compare with": command("compare", "WHOLE", "RUN", "--json"),
    "calibrate": command("calibrate", "RUN"),
    "ablate": command("ablate", "RUN"),
    "memory": command("memory", "RUN", "-o", "NEW"),
    "by calibration": command("report", "RUN", "--by", "calibration", "--records", "NEW"),
    **{f"by {by}": command("report", "RUN", "--by", by, "--records", "NEW") for by in BY},
    "card": refusable(card),
    "pull": refusable(check_run),
    "serve": refusable(served),
}


def readers_of(file: str) -> list[str]:
    """The commands that read a file of a run, by name."""
    if file.startswith("shards/"):
        return ["join"]
    if file.startswith("ranks"):
        return ["audit", "compare", "compare with", *(f"by {by}" for by in BY)]
    if file.startswith("metrics"):
        return ["card", "audit", "ablate", "evaluate"]
    if file == "calibration.json":
        return ["forecast", "forecast within", "by calibration", "serve", "calibrate"]
    if file in ("refresh.json", "merged.safetensors"):
        return ["card", "serve", "audit valid"]
    if file.endswith(".txt"):
        return ["by relation", "memory", "pull"]
    return list(READERS)


def survives(run: Path, whole: Path, reader: str) -> None:
    """A command on a spoiled run ends with 0, or with 2 and one sentence; an audit may find that the run fails."""
    outcome = READERS[reader](run, whole)
    if outcome.code == 0 or (reader.startswith("audit") and outcome.code == 1 and "NOT SHOWN" in outcome.out):
        return
    assert outcome.code == 2, outcome
    *remarks, sentence = outcome.err.splitlines()
    assert len(remarks) <= 1, outcome.err  # such as that validation is read in place of test
    if sentence.startswith("{"):  # what --json makes of it
        sentence = f"bridgemem: {json.loads(sentence)['error']}"
    assert sentence.startswith("bridgemem: "), sentence
    assert sentence.endswith((".", "?")), sentence
    assert len(sentence) < 1000, sentence


@pytest.fixture
def attack(tmp_path: Path, count_cases: Callable[[int], None]) -> Callable[[Path, Spoiling, str], None]:
    """Spoil a copy of a run and let a command read it."""
    numbers = itertools.count()

    def tried(whole: Path, spoiling: Spoiling, reader: str) -> None:
        folder = tmp_path / f"run{next(numbers)}"
        run = spoiled(whole, spoiling, folder)
        try:
            survives(run, whole, reader)
        except BaseException as problem:
            problem.add_note(f"case: {reader}: {spoiling}")
            raise
        count_cases(1)
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)

    return tried


def found(run: Path, file: str, *wanted: tuple[str, str]) -> Iterator[Spoiling]:
    """The spoilings of a file at (where, how)."""
    known = {(one.where, one.how): one for one in spoilings(run, file)}
    for place in wanted:
        yield known[place]


# ---- what once ended in a traceback --------------------------------------------------------------------------------

TOML_PLACES = ("run.dataset", "run.seed", "run.refit_seconds", "settings.k", "settings.lambdas", "settings.width")
JSON_PLACES = {
    "backbone/trained.json": ("parameters", "seed"),
    "calibration.json": ("bridgemem.time", "bridgemem.time.temperature"),
    "epochs.json": ("epochs", "learned.raw.settings.hidden", "learned.raw.held_out", "learned.raw.parameters"),
    "metrics.json": ("test.0.mrr", "test.11.settings.window", "test.0.queries"),
    "selection.json": ("time.choice.lam", "time.queries", "static.chosen.mrr"),
    NOTE: ("of", "rows"),
}
FIRST_READER = {
    "metrics.json": "card",
    "epochs.json": "explain learned",
    NOTE: "join",
    "backbone/trained.json": "shard",
}


def test_whole_numbers_of_thousands_of_digits(whole: Path, attack: Callable[..., None]) -> None:
    for file in ("config.toml", "backbone/config.toml"):
        for spoiling in spoilings(whole, file):
            if spoiling.how == DIGITS or (spoiling.how, spoiling.where) in itertools.product([HEX], TOML_PLACES):
                attack(whole, spoiling, "forecast")
    for file, places in JSON_PLACES.items():
        for spoiling in found(whole, file, *itertools.product(places, (DIGITS, "10^400"))):
            attack(whole, spoiling, FIRST_READER.get(file, "forecast"))


def test_values_of_another_kind(whole: Path, refreshed: Path, attack: Callable[..., None]) -> None:
    wrong: dict[str, tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = {
        "config.toml": (("explain learned", (("learned", "-1"), ("learned", "text"), ("settings", "list"))),),
        "epochs.json": (
            ("join", (("learned", "null"), ("learned.raw.settings", "missing"))),
            ("forecast", (("learned", "list"), ("learned.raw", "text"))),
        ),
        "metrics.json": (("ablate", (("test", "table"), ("whole", "list"))), ("card", (("test.0.mrr", "text"),))),
        "backbone/trained.json": (("by calibration", (("seed", "text"), ("device", "list"))),),
        "calibration.json": (("forecast", (("bridgemem.time.temperature", "1e400"),)),),
        NOTE: (
            (
                "join",
                (
                    *itertools.product(("number", "of", "device", "cells", "rows"), ("empty text", "10^12", "list")),
                    *(("steps", "nested"), ("table", "2^31"), ("digest", "null"), ("split", "list")),
                ),
            ),
        ),
    }
    for file, commands in wrong.items():
        for reader, places in commands:
            for spoiling in found(whole, file, *places):
                attack(whole, spoiling, reader)
    places = [(f"0.{name}", how) for name in ("added", "new_entities", "when") for how in ("table", "text", "0.5")]
    for spoiling in found(refreshed, "refresh.json", *places):
        attack(refreshed, spoiling, "card")
    for spoiling in found(
        refreshed,
        "config.toml",
        *itertools.product(("run.backbone_entities", "run.backbone_relations"), ("2^31", "-1", "empty text")),
    ):
        attack(refreshed, spoiling, "forecast")


def test_tensors_of_foreign_types_and_lengths(whole: Path, attack: Callable[..., None]) -> None:
    types, shapes = (
        ("F8_E4M3", "F8_E5M2", "F8_E8M0", "C64", "BOOL", "I16", "U8", "I64"),
        ("flat", "longer", "of no length"),
    )
    for tensor in ("known.log_prior", "known.reader.head.3.weight"):
        for spoiling in found(whole, "model.safetensors", *((tensor, how) for how in (*types, *shapes))):
            attack(whole, spoiling, "forecast within")
    for spoiling in found(whole, "model.safetensors", *(("learned.raw.log_scale", how) for how in types)):
        attack(whole, spoiling, "forecast learned")
    for tensor in ("oracle.1.running_mean", "relation"):
        for spoiling in found(whole, BACKBONE, *((tensor, how) for how in (*types, *shapes))):
            attack(whole, spoiling, "forecast within")


def test_tables_of_ranks_that_hold_none(whole: Path, attack: Callable[..., None]) -> None:
    kinds = ("text", "struct", "date", "missing")
    for column in ("rank_time.backbone", "step"):
        for spoiling in found(whole, "ranks.parquet", *((column, how) for how in kinds)):
            attack(whole, spoiling, "compare")
    for column in ("relation", "answer_lag"):
        for spoiling in found(whole, "ranks.parquet", *((column, how) for how in (*kinds, "negative", "2^62"))):
            attack(whole, spoiling, "by relation")
    for spoiling in found(whole, PART, ("actor", "missing"), ("rank_time.backbone", "text"), ("rows", "twice")):
        attack(whole, spoiling, "join")
    attack(whole, Spoiling("ranks.parquet", "as .npz", "10^13 rows", claimed_table), "compare")


def test_data_with_a_clock_that_cannot_be(whole: Path, attack: Callable[..., None]) -> None:
    units, origins = ("0", "-1", "10^12", DIGITS, "text"), ("10^12", "2^63", "null", "0.5")
    places = [("about.clock.2", how) for how in units] + [("about.clock.1", how) for how in origins]
    places += [("about.clock.0", "text"), ("about.name", "list"), ("about.valid_start", "0.5")]
    for spoiling in found(whole, "data.npz", *places):
        attack(whole, spoiling, "forecast")
    for spoiling in found(whole, "data.npz", ("about.clock.2", "0"), ("about.clock.1", "10^12")):
        attack(whole, spoiling, "serve")
    claims = [(name, how) for name in ("subject", "entity_sizes") for how in ("10^13 rows", "2^70 rows", "complex")]
    for spoiling in found(whole, "data.npz", *claims):
        attack(whole, spoiling, "forecast")


# ---- a sample of all -----------------------------------------------------------------------------------------------


def test_whatever_is_spoiled_is_harmless_or_refused(whole: Path, refreshed: Path, attack: Callable[..., None]) -> None:
    turn = itertools.count()
    for run in (whole, refreshed):
        for spoiling in itertools.islice(spoilings(run), 0, None, EVERY):
            readers = readers_of(spoiling.file)
            attack(run, spoiling, readers[next(turn) % len(readers)])


def test_the_run_is_read_by_every_command_before_it_is_spoiled(
    whole: Path, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in (
        "forecast",
        "forecast learned",
        "forecast within",
        "compare",
        "by relation",
        "card",
        "pull",
        "serve",
        "join",
    ):
        outcome: Any = READERS[name](run, whole)
        assert outcome.code == 0, (name, outcome)
        count_cases(1)
