"""Edge lists of TGB: its ids, its split, as its own package makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.loading import load
from commands import bridgemem
from edge_lists import edge_list


@pytest.mark.parametrize(("name", "numbers"), [("tkgl-smallpedia", False), ("tkgl-icews", True), ("tkgl-yago", True)])
def test_ids_and_split_are_those_of_tgb(tmp_path: Path, name: str, numbers: bool) -> None:
    made = pytest.importorskip("tgb.utils.pre_process")
    dataset = pytest.importorskip("tgb.linkproppred.dataset")
    utils = pytest.importorskip("tgb.utils.utils")
    path = edge_list(tmp_path / name.replace("-", "_"), name, numbers=numbers)
    data = load(path)
    frame = (made.csv_to_tkg_data if numbers else made.csv_to_wikidata)(str(path))[0]
    found = np.stack([data.events.subject, data.events.object, data.events.relation])
    assert np.array_equal(found, frame[["u", "i", "edge_type"]].to_numpy().T)
    full = {"timestamps": np.array(utils.add_inverse_quadruples(frame)["ts"]).astype(int)}
    shares = {"val_ratio": 0.1, "test_ratio": 0.1} if "yago" in name else {}
    masks = dataset.LinkPropPredDataset.generate_splits(None, full, **shares)
    assert list(data.sizes.values()) == [int(mask.sum()) // 2 for mask in masks]
    assert load(path.parent).identity == data.identity, "the folder stands for its edge list"


def test_epoch_times_are_dates(tmp_path: Path) -> None:
    data = load(edge_list(tmp_path, "tkgl-polecat", numbers=True))
    assert data.events.clock.kind == "date"
    assert data.events.clock.label(data.events.start).startswith("2001-09-")


def test_what_is_known_of_the_layout_is_not_given_again(tmp_path: Path) -> None:
    path = edge_list(tmp_path)
    with pytest.raises(SettingsError, match="is an edge list of TGB"):
        load(path, subject="head")
    with pytest.raises(SettingsError, match="is split already"):
        load(path, valid=0.2)
    path.write_text("ts,head\n1,2\n")
    with pytest.raises(DataError, match="expected the columns time, head, tail and relation"):
        load(path)
    bridgemem("data", "stats", path).refused()
