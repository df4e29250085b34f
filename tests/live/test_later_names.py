"""Later names: what comes to be known after a day changes no bit of a forecast for it, whatever the backbone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bridgemem.events.naming import NewEvent
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.runs import Run
from commands import ACTORS, RELATIONS, TINY_READER, bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)

# forty new names and a new relation, all of them from the day on that is asked for
LATER: list[NewEvent] = [
    (f"New {i}", (*RELATIONS, "sing to")[i % 6], ("Arvan", f"New {i + 1}")[i % 2], f"2024-02-{11 + i % 9}")
    for i in range(40)
]
TINY = {
    "cygnet": ("width=8", "epochs=1"),
    "regcn": ("width=8", "epochs=1", "kernels=4", "dropout=0.0"),
    "infer": ("rank=4", "epochs=1", "walks=50"),
    "stream": ("width=8", "k=4", "epochs=1"),
    "ensemble": ("members=infer,hri",),
}


@pytest.fixture(scope="session")
def both_run(request: pytest.FixtureRequest, own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with both residuals, on the backbone that is asked for: one without an uncertainty of its own."""
    home, backbone = tmp_path_factory.mktemp("both"), request.param
    if request.param in TINY:
        options = (option for value in TINY[request.param] for option in ("--set", value))
        trained = bridgemem("train", request.param, "-d", own_csv, "-o", home / "backbone", *options)
        assert trained.code == 0, trained.err
        backbone = home / "backbone"
    learned = ("--residual", "learned", "--learned-set", "epochs=2", "--learned-set", "unseen_candidates=3")
    fitted = bridgemem("fit", "-d", own_csv, "-b", backbone, "-o", home / "run", *TINY_READER, *learned)
    assert fitted.code == 0, fitted.err
    return Run(home / "run")


DAYS = ("2024-01-25", "2024-02-10", "2024-02-11")


def told(live: LiveForecaster) -> list[object]:
    """All that is said of some days, to the last bit: ranks, scores, probabilities, an explanation."""
    asked = [(actor, relation) for actor in (*ACTORS[:3], "Early") for relation in RELATIONS[:2]]
    horizon = {"visit": 3}
    answers = [
        live.forecast(actor, relation, at=day, horizon=horizon.get(relation), top=99)
        for day in DAYS
        for actor, relation in asked
    ]
    return [answers, asdict(live.explain("Arvan", "visit", "Belmor", at=DAYS[-1]))]


@pytest.mark.parametrize("both_run", ["recurrence", "recurrence-typed", "hri", *TINY], indirect=True)
def test_names_of_later_steps_change_no_bit_of_a_forecast_before_them(
    both_run: Run, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = request.node.callspec.params["both_run"]
    # of a learned residual it is a promise of its own, whatever the backbone; the ensemble's reads its members too
    for residual in ("bridgemem", "learned") if name in ("recurrence", "regcn", "ensemble") else ("bridgemem",):
        later_names_change_nothing(both_run, residual, tmp_path)


def later_names_change_nothing(run: Run, residual: str, folder: Path) -> None:
    early: list[NewEvent] = [("Arvan", "visit", "Early", "2024-02-10")]
    with EventStore(folder / f"{residual}.duckdb") as store:
        live = LiveForecaster(loaded(run, residual=residual), store)
        live.add(early, "wire", "0")
        before = told(live)
        # a few names that leave a row of scores shorter than a vector register, then many that do not
        for part in (LATER[:1], LATER[1:]):
            live.add(part, "wire", part[0][0])
            assert told(live) == before
        assert live.events.n_entities > 3 * 16 > 16 > live.base.n_entities + 2
        assert "Early" not in {c.name for c in live.forecast("Arvan", "visit", at="2024-02-10", top=99)}
        assert "Early" in {c.name for c in live.forecast("Arvan", "visit", at="2024-02-11", top=99)}
        now = live.forecast("Arvan", "visit", top=99)
        assert {"Early", "New 0", "New 39"} < {c.name for c in now}
        assert sum(c.p_given_event or 0.0 for c in now) == pytest.approx(1)
    with EventStore(folder / f"{residual} late.duckdb") as store:
        live = LiveForecaster(loaded(run, residual=residual), store)
        live.add(LATER, "wire", "0")
        live.add(early, "wire", "1")
        assert told(live) == before
