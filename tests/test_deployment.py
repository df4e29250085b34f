"""deploy/: files that their own schemas accept, options and metrics that exist, and a unit whose command starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from typer.main import get_command

from bridgemem.cli.configured import variable
from bridgemem.cli.main import app
from commands import bridgemem

pytest_plugins = ("small_runs",)
ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
if not DEPLOY.is_dir():
    pytest.skip("needs deploy/ of the repository", allow_module_level=True)
SERVE: Any = get_command(app).commands["serve"]  # type: ignore[attr-defined]


def accepted(*words: str | Path) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_is_one_and_its_options_exist() -> None:
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema, of the extra 'dev'")
    yaml = pytest.importorskip("yaml")
    words = ("--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    accepted(sys.executable, "-m", "check_jsonschema", *words)
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["bridgemem"]
    known = {option for parameter in SERVE.params for option in parameter.opts}
    assert {word for word in service["command"] if word.startswith("--")} <= known
    mounted = [volume.split(":")[0] for one in ("prometheus", "grafana") for volume in _volumes(yaml, one)]
    assert [name for name in mounted if name.startswith("./") and not (DEPLOY / name).is_file()] == []


def _volumes(yaml: Any, name: str) -> list[str]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][name]["volumes"]


def test_the_kubernetes_manifest_is_valid_and_its_variables_and_probes_exist() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate, of the extra 'dev'")
    yaml = pytest.importorskip("yaml")
    parts = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for part in parts:
        validate.validate(part, validate.latest_version(), strict=True)
    (container,) = parts[-1]["spec"]["template"]["spec"]["containers"]
    known = {variable(parameter.name) for parameter in SERVE.params}
    assert {given["name"] for given in container["env"]} <= known
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"/healthz", "/readyz"}
    assert parts[-1]["spec"]["replicas"] == 1  # one process has the store


def test_the_unit_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    text = (DEPLOY / "bridgemem.service").read_text()
    unit = tmp_path / "bridgemem.service"
    unit.write_text(text.replace("/opt/bridgemem/bin/bridgemem", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "bridgemem.service" not in done.stderr, done.stderr


@contextmanager
def served(*words: str) -> Iterator[Callable[[str], str]]:
    """A service in a process of its own; what it answers to a path."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "bridgemem", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert process.stdout is not None
        (address,) = re.findall(r"http://([\d.:]+)", process.stdout.readline())
        port = address.rpartition(":")[2]

        def get(path: str) -> str:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": "Bearer token"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.read().decode()

        yield get
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_command_of_the_unit_starts_with_its_settings_and_has_what_the_dashboard_shows(
    recurrence_run: Path, tmp_path: Path
) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "bridgemem.service").read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert Path(program).name == "bridgemem"
    for name in ("token", "admin-token"):
        (tmp_path / name).write_text(f"{name}\n")
    text = (DEPLOY / "service.toml").read_text().replace("/run/credentials/bridgemem.service", str(tmp_path))
    text = text.replace("/var/lib/bridgemem/runs/current", str(recurrence_run))
    text = text.replace("/var/lib/bridgemem", str(tmp_path)).replace("port = 8008", "port = 0")
    settings = tmp_path / "service.toml"
    settings.write_text(text)
    assert bridgemem("config", "show", "--config", DEPLOY / "service.toml").code == 0
    words = [str(settings) if word == "/etc/bridgemem/service.toml" else word for word in words]
    with served(*words) as get:
        assert json.loads(get("/v1/model"))["events"] == 600
        exported = set(re.findall(r"^# TYPE (\w+)", get("/metrics"), re.MULTILINE))
    panels = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    shown = {name for text in expressions for name in re.findall(r"\b((?:bridgemem|process)_\w+)", text)}
    assert {name.removesuffix("_bucket") for name in shown} <= exported
    for kind in ("drift_", "quarantine_", "names_new"):
        assert any(name.startswith(f"bridgemem_{kind}") for name in shown)


def test_the_container_of_the_compose_file_takes_in_its_feed(recurrence_run: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    words = [
        *json.loads(entry),
        *yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["bridgemem"]["command"],
    ]
    (tmp_path / "token").write_text("token\n")
    (tmp_path / "events.jsonl").write_text('["Arvan", "visit", "Kel", "2024-02-10"]\n')
    places = {"/model": recurrence_run, "/feed": tmp_path, "/events": tmp_path, "/run/secrets": tmp_path, "8008": "0"}
    for inside, outside in places.items():
        words = [re.sub(rf"^{inside}(?=/|$)", str(outside), word) for word in words]
    with served(*words[1:]) as get:
        until = time.monotonic() + 60
        while not json.loads(get("/v1/sources"))["sources"] and time.monotonic() < until:
            time.sleep(0.1)
        assert json.loads(get("/v1/model"))["events"] == 601
    mounted = {volume.split(":")[1] for volume in _volumes(yaml, "bridgemem")}
    assert mounted == {"/model", "/feed", "/events"}


def test_the_image_is_built_from_what_it_copies_and_nothing_else() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    assert sorted(let_in) == sorted(names)
    assert not any(fnmatch(name, rule) for name in ("runs", "datasets", ".git", "results") for rule in let_in)
