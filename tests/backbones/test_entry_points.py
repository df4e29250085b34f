"""Backbones of other packages: found by their entry point, never in place of a built-in, broken only when asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bridgemem
from bridgemem.backbones import (
    BACKBONES,
    backbone_class,
    backbone_defaults,
    backbone_names,
    list_backbones,
    load_backbone,
)
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.hri import Hri
from bridgemem.errors import BackboneError, NotFoundError
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import small_world
from commands import bridgemem as command
from commands import planted_rows, write_rows

MODULE = '''
from dataclasses import dataclass

import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import Scores


@dataclass(frozen=True)
class EvenSettings:
    step: float = 1.0


class Even(Backbone):
    """Even ids are likelier than odd ones.

    A second paragraph.
    """

    name = "even"
    default = EvenSettings()
    trained = False

    def __init__(self, settings, n):
        self.settings, self.n = settings, n

    @classmethod
    def train(cls, dataset, settings, training):
        return cls(settings, dataset.events.n_entities)

    def score(self, queries, past):
        even = (torch.arange(self.n, device=queries.actor.device) % 2 == 0).double()
        return Scores(self.settings.step * even.repeat(len(queries), 1))

    def tensors(self):
        return {"n": torch.tensor([self.n])}

    @classmethod
    def restore(cls, settings, tensors):
        return cls(settings, int(tensors["n"]))


def not_a_class():
    pass
'''


def install(home: Path, package: str, points: dict[str, str], module: str = MODULE) -> Path:
    """What pip leaves of a small package: its module and the dist-info folder next to it."""
    info = home / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    named = "".join(f"{name} = {target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[bridgemem.backbones]\n{named}")
    (home / f"{package}.py").write_text(module)
    return home


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages that this process sees, for as long as the test runs."""
    home = tmp_path / "site"
    home.mkdir()
    monkeypatch.syspath_prepend(home)
    before = set(sys.modules)
    yield home
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(home)):
            del sys.modules[name]


def test_a_backbone_of_another_package_is_used_like_any_other(site: Path, tmp_path: Path) -> None:
    install(site, "evenly", {"even": "evenly:Even"})
    assert backbone_names() == [*BACKBONES, "even"]
    world = small_world()
    backbone = backbone_class("even").fit(world.dataset, backbone_defaults("even", "world"))
    check_backbone(backbone, world.events)
    backbone.save(tmp_path / "saved")
    queries, past = Queries.of(world.dataset.valid), Past(world.events)
    found = load_backbone(tmp_path / "saved").score(queries, past).log_p
    assert torch.equal(found, backbone.score(queries, past).log_p)


def test_it_is_listed_with_its_package_and_first_line(site: Path) -> None:
    install(site, "evenly", {"even": "evenly:Even"})
    *built_in, own = list_backbones()
    assert [entry.name for entry in built_in] == list(BACKBONES)
    assert {entry.package for entry in built_in} == {"bridgemem"}
    assert (own.name, own.kind, own.line) == ("even", "training-free", "Even ids are likelier than odd ones.")
    assert (own.package, own.broken) == ("evenly", None)


def test_a_backbone_that_says_nothing_of_training_is_listed_as_trained(site: Path) -> None:
    install(site, "evenly", {"even": "evenly:Even"}, MODULE.replace("    trained = False\n", ""))
    assert list_backbones()[-1].kind == "trained"


def test_no_package_takes_the_name_of_a_built_in(site: Path) -> None:
    install(site, "shadow", {"hri": "shadow:Even", "cenet": "shadow:Even"})
    assert backbone_class("hri") is Hri
    assert backbone_names() == list(BACKBONES)
    assert [entry.package for entry in list_backbones()] == ["bridgemem"] * len(BACKBONES)
    assert "shadow" not in sys.modules


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("evenly:Odd", "cannot be loaded (AttributeError: "),
        ("oddly:Even", "cannot be loaded (ModuleNotFoundError: No module named 'oddly')"),
        ("evenly:not_a_class", "is not a subclass of Backbone with that name"),
        ("evenly:EvenSettings", "is not a subclass of Backbone with that name"),
        ("evenly:Even", "is not a subclass of Backbone with that name"),
    ],
)
def test_a_broken_one_is_an_error_only_when_asked_for(target: str, complaint: str, site: Path) -> None:
    install(site, "evenly", {"odd": target})
    assert backbone_class("hri") is Hri
    with pytest.raises(BackboneError, match=re.escape(complaint)) as refused:
        backbone_class("odd")
    sentence = str(refused.value)
    assert sentence.startswith("the backbone 'odd' of the package evenly ")
    assert sentence.endswith("repair or uninstall it.")
    listed = list_backbones()[-1]
    assert (listed.name, listed.kind, listed.broken) == ("odd", "unknown", sentence)


@pytest.mark.parametrize("raised", ["RuntimeError('no licence.\\nBuy one.')", "ValueError()", "SyntaxError('odd')"])
def test_whatever_its_import_raises_becomes_one_sentence(raised: str, site: Path) -> None:
    install(site, "evenly", {"even": "evenly:Even"}, f"raise {raised}\n")
    with pytest.raises(BackboneError, match=r"evenly cannot be loaded \(\w+Error: ?[\w ]*\); repair") as refused:
        backbone_class("even")
    assert "\n" not in str(refused.value)


def test_two_packages_with_one_name_are_not_chosen_between(site: Path) -> None:
    for package in ("evenly", "evener"):
        install(site, package, {"even": f"{package}:Even"})
    with pytest.raises(BackboneError, match=r"'even' is offered by even\w+ and even\w+; uninstall"):
        backbone_class("even")
    assert list_backbones()[-1].broken is not None


def test_an_unknown_name_is_answered_with_those_of_other_packages_too(site: Path) -> None:
    install(site, "evenly", {"even": "evenly:Even"})
    with pytest.raises(NotFoundError, match=re.escape(f"choose from {', '.join(BACKBONES)}, even.")):
        backbone_class("evn")


def test_the_command_line_lists_and_trains_it(site: Path, tmp_path: Path) -> None:
    install(site, "evenly", {"even": "evenly:Even", "odd": "evenly:Odd"})
    found = {entry["name"]: entry for entry in command("backbones", "list", "--json").json["backbones"]}
    assert found["even"]["broken"] is None
    assert "Odd" in found["odd"]["broken"]
    lines = command("backbones", "list").out.splitlines()
    assert any(line.startswith("odd ") and " broken " in line for line in lines)
    data = write_rows(tmp_path / "own.csv", planted_rows())
    trained = command("train", "even", "--data", data, "--out", tmp_path / "even", "--set", "step=2", "--json").json
    assert trained["backbone"] == "even"
    assert load_backbone(tmp_path / "even").settings.step == 2.0
    assert "'odd' of the package evenly" in command("train", "odd", "-d", data, "-o", tmp_path / "odd").refused()


def test_a_new_process_finds_what_is_installed(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "evenly", {"even": "evenly:Even"})
    source = str(Path(bridgemem.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), source])}
    program = "from bridgemem.backbones import backbone_names; import sys; sys.stdout.write(backbone_names()[-1])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "even"), done.stderr
