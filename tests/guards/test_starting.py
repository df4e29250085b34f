"""A guard for the start of the program: the modules that are loaded before anything is done, counted and not timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
HEAVY = {"torch", "numpy", "scipy", "duckdb", "matplotlib", "rich", "safetensors", "fastapi", "pydantic", "pyspark"}
HELP = """
sys.argv = ["bridgemem", "--help"]
from bridgemem.cli.main import main
try:
    main()
except SystemExit:
    pass
"""


def loaded_by(code: str) -> set[str]:
    """Modules that a new interpreter has after the code and does not have without it."""

    def modules(program: str) -> set[str]:
        own = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{program}\nprint(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", own], capture_output=True, text=True, check=True)
        return set(done.stdout.splitlines()[-1].split())

    return modules(code) - modules("pass")


def test_importing_the_package_loads_a_handful_of_modules() -> None:
    loaded = loaded_by("import bridgemem")
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert {name for name in loaded if name.startswith("bridgemem")} == {"bridgemem"}
    assert len(loaded) <= 45


def test_help_loads_the_commands_and_nothing_heavy() -> None:
    loaded = loaded_by(HELP)
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    own = {name for name in loaded if name.startswith("bridgemem.")}
    assert "bridgemem.cli.main" in own
    beyond = {name for name in own if not name.startswith("bridgemem.cli")}
    assert beyond <= {"bridgemem.__main__", "bridgemem.config", "bridgemem.errors", "bridgemem.progress"}, (
        "a command imports what it needs when it runs"
    )
    assert len(loaded) <= 182


FIT = """
for name in ("pydantic", "duckdb", "typer", "rich", "platformdirs"):
    sys.modules[name] = None
import bridgemem as bm
world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
model = bm.Forecaster("recurrence", settings=bm.Settings(max_epochs=1)).fit(world)
assert len(model.forecast(0, 0, top=3)) == 3
"""


def test_settings_and_fitting_need_numpy_torch_and_safetensors_alone() -> None:
    assert "torch" in loaded_by(FIT)
