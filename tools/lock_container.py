"""Write constraints-container.txt: what the container installs next to torch, with hashes. `make lock` runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PINS, LOCK = ROOT / "constraints.txt", ROOT / "constraints-container.txt"
EXTRAS = ("serve",)
# the build backend is locked too, so that nothing is fetched while the package is built
BUILD = ("hatchling",)
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
SYSTEMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")

HEAD = """\
# What the Containerfile installs next to torch, with the hashes of its wheels for Linux; the versions are those of
# constraints.txt. Written by `make lock`: run it after a change of constraints.txt or of the dependencies.
# torch has a build for each kind of device and is not in here: pip asks for the hashes of all it installs, or of none.
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """The versions of constraints.txt by normal name."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return {normal(name): version for name, version in (line.split("==") for line in lines if not line.startswith("#"))}


def needed() -> list[str]:
    """All that the served package and its build need, as the installed packages tell, without torch."""
    pins, found, waiting = pinned(), set(BUILD), [("bridgemem", EXTRAS), *((name, ()) for name in BUILD)]
    while waiting:
        parent, extras = waiting.pop()
        for required in map(Requirement, metadata.requires(parent) or ()):
            name = normal(required.name)
            # what torch needs without a pin belongs to its build for one kind of device
            if name in found or not _applies(required, extras) or (parent == "torch" and name not in pins):
                continue
            found.add(name)
            waiting.append((name, tuple(required.extras)))
    return sorted(found - {"torch"})


def _applies(required: Requirement, extras: tuple[str, ...]) -> bool:
    """Whether a requirement holds on Linux for any of the versions of Python."""
    return required.marker is None or any(
        required.marker.evaluate(
            {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
            | {"platform_system": "Linux", "sys_platform": "linux", "os_name": "posix"}
        )
        for python in PYTHONS
        for extra in (*extras, "")
    )


def hashes(python: str, machine: str, wanted: list[str]) -> dict[str, str]:
    """The hash of the wheel that pip would install of each, by normal name."""
    with tempfile.TemporaryDirectory() as aside:
        report = Path(aside) / "report.json"
        options = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--only-binary", ":all:"]
        options += ["--target", aside, "--python-version", python, "--report", str(report)]
        options += [word for system in SYSTEMS for word in ("--platform", f"{system}_{machine}")]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {normal(one["metadata"]["name"]): one["download_info"]["archive_info"]["hashes"]["sha256"] for one in found}


def main() -> None:
    pins = pinned()
    wanted = {name: f"{name}=={pins[name]}" for name in needed()}
    known: dict[str, set[str]] = {name: set() for name in wanted}
    for python in PYTHONS:
        for machine in MACHINES:
            for name, value in hashes(python, machine, list(wanted.values())).items():
                known[name].add(value)
    entries = [
        " \\\n    ".join([wanted[name], *(f"--hash=sha256:{value}" for value in sorted(values))])
        for name, values in known.items()
    ]
    LOCK.write_text(HEAD + "\n".join(entries) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
