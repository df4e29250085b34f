"""`bridgemem backbones list`: every backbone with one line, for people and for programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bridgemem.backbones import BACKBONES, backbone_class, backbone_defaults
from commands import bridgemem


def test_every_backbone_has_a_line() -> None:
    found = bridgemem("backbones", "list", "--json").json["backbones"]
    built_in = [entry for entry in found if entry["package"] == "bridgemem"]
    assert [entry["name"] for entry in built_in] == list(BACKBONES)
    for entry in built_in:
        assert entry["kind"] in ("trained", "training-free")
        assert 0 < len(entry["line"]) <= 70
        assert entry["broken"] is None
    kinds = {entry["name"]: entry["kind"] for entry in built_in}
    assert (kinds["cenet"], kinds["hri"], kinds["recurrence"]) == ("trained", "training-free", "training-free")


def test_people_see_the_same() -> None:
    outcome = bridgemem("backbones", "list")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[1].split() == ["name", "kind", "package", "what"]
    assert [line.split()[0] for line in lines[3 : 3 + len(BACKBONES)]] == list(BACKBONES)


def test_the_command_alone_shows_its_help() -> None:
    outcome = bridgemem("backbones")
    assert "list" in outcome.out + outcome.err


@pytest.mark.parametrize("name", BACKBONES)
def test_every_line_of_the_registry_leads_to_a_backbone_of_that_name(name: str) -> None:
    assert backbone_class(name).name == name
    assert backbone_defaults(name, "icews14") is not None


def test_settings_for_a_data_set_are_of_the_types_that_a_saved_backbone_has() -> None:
    settings = backbone_defaults("tpar", "icews18")
    assert settings.late == 0.5
    assert isinstance(settings.edges, tuple)
    assert settings != backbone_defaults("tpar", "another")


def test_listing_does_not_wait_for_torch() -> None:
    program = (
        "import sys; from bridgemem.backbones import list_backbones; "
        "sys.exit('torch' in sys.modules or not list_backbones() or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
