"""The named data sets: found, verified, packed and downloaded, and refused when they are something else."""

import gzip
import http.server
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import (
    CATALOG,
    Benchmark,
    benchmark_name,
    benchmark_status,
    download,
    load_benchmark,
    user_cache,
)
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.packs import pack, unpack

FILES = {
    "train.txt": "1\t0\t2\t10\t0\n0  \t1\t1\t10\t0\n0\t0\t1\t0\t0\n",
    "valid.txt": "2\t1\t0\t30\n",
    "test.txt": "0\t1\t2\t40\n0\t1\t2\t40\n",
    "entity2id.txt": "Bob\t1\nAnn Ö\t0\nCid\t2\n",
    "relation2id.txt": "greets\t0\npays\t1\n",
}
DAY = 86_400


def tiny_log(order: tuple[int, ...] = (2, 1, 0, 3, 4, 5)) -> EventLog:
    rows = np.array([(1, 0, 2, 1), (0, 1, 1, 1), (0, 0, 1, 0), (2, 1, 0, 3), (0, 1, 2, 4), (0, 1, 2, 4)])[list(order)]
    entities, relations = Vocabulary("entity", ("Ann Ö", "Bob", "Cid")), Vocabulary("relation", ("greets", "pays"))
    return EventLog(*rows.T, entities, relations, Clock("date", 1388534400, DAY))


TINY = Benchmark(
    name="tiny",
    title="a handful of events",
    unit=10,
    clock=Clock("date", 1388534400, DAY),
    entities=3,
    relations=2,
    train=3,
    valid=1,
    test=2,
    fingerprint=tiny_log().fingerprint,
    source="made up",
    urls={file: f"http://127.0.0.1:1/{file}" for file in FILES},
    sorted_train=True,
)


def same(a: Dataset, b: Dataset) -> bool:
    columns = ("subject", "relation", "object", "step")
    return (
        all((getattr(a.events, c) == getattr(b.events, c)).all() for c in columns)
        and (a.events.entities, a.events.relations, a.events.clock)
        == (b.events.entities, b.events.relations, b.events.clock)
        and (a.name, a.valid_start, a.test_start) == (b.name, b.valid_start, b.test_start)
    )


def write_texts(folder: Path, files: dict[str, str], packed: bool = False) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        if packed and name in ("train.txt", "valid.txt", "test.txt"):
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text, encoding="utf-8")
    return folder.parent


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("BRIDGEMEM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BRIDGEMEM_DATA", raising=False)


# ---- which one it is -------------------------------------------------------------------------------------------------


def test_a_data_set_is_a_named_one_by_its_content_and_split_and_not_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOG, "tiny", TINY)
    dataset = load_benchmark("tiny", write_texts(tmp_path / "data" / "tiny", FILES))
    pack(dataset, tmp_path / "copy.npz")
    assert benchmark_name(dataset) == benchmark_name(unpack(tmp_path / "copy.npz")) == "tiny"
    others = (
        replace(dataset, events=tiny_log((2, 1, 0, 3, 4, 4)).append(tiny_log().between(4, 5))),
        replace(dataset, name="mine"),
        replace(dataset, valid_start=1),
        replace(dataset, test_start=None),
        dataset.without_test(),
    )
    assert [benchmark_name(other) for other in others] == [""] * len(others)


# ---- loading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_text_files_become_a_dataset_whose_steps_are_time_over_unit(tmp_path, packed):
    dataset = load_benchmark(TINY, write_texts(tmp_path / "data" / "tiny", FILES, packed))
    assert dataset.events.step.tolist() == [0, 1, 1, 3, 4, 4]
    assert dataset.events.subject.tolist() == [0, 0, 1, 2, 0, 0]
    assert dataset.events.entities.names == ("Ann Ö", "Bob", "Cid")
    assert dataset.events.clock.label(4) == "2014-01-05"
    assert [len(dataset.split(split)) for split in ("train", "valid", "test")] == [3, 1, 2]


def test_the_argument_comes_before_the_variable_and_the_variable_before_the_cache(tmp_path, monkeypatch):
    folders = [write_texts(tmp_path / name / "tiny", FILES) for name in ("argument", "variable")]
    cache = user_cache()
    cache.mkdir(parents=True)
    pack(load_benchmark(TINY, folders[0]), cache / "tiny.npz")
    monkeypatch.setitem(CATALOG, "tiny", TINY)
    monkeypatch.setenv("BRIDGEMEM_DATA", str(folders[1]))
    assert benchmark_status("tiny", folders[0]).copy == folders[0] / "tiny"
    assert benchmark_status("tiny").copy == folders[1] / "tiny"
    monkeypatch.delenv("BRIDGEMEM_DATA")
    assert benchmark_status("tiny").copy == cache / "tiny.npz"
    assert benchmark_status("tiny").searched == (cache,)
    assert len(load_benchmark("tiny").events) == 6


def test_a_data_set_found_nowhere_says_how_to_bring_it(tmp_path):
    assert benchmark_status("icews14", tmp_path).copy is None
    for name in ("icews14", "gdelt-resplit"):
        with pytest.raises(NotFoundError, match=r"data download \w+.*--data-dir.*BRIDGEMEM_DATA"):
            load_benchmark(name, tmp_path)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(NotFoundError, match="icews14, icews18, icews05-15, wiki, yago, gdelt, gdelt-resplit"):
        load_benchmark("icews")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train.txt", FILES["train.txt"] + "0\t0\t1\t10\t0\n", "it has 4 train, expected 3"),
        ("train.txt", FILES["train.txt"].replace("1\t0\t2\t10", "1\t0\t0\t10"), "fingerprint .* expected"),
        ("train.txt", FILES["train.txt"].replace("1\t0\t2", "1\t0\t7"), "train.txt:1: unknown entity id 7"),
        ("valid.txt", FILES["valid.txt"].replace("30", "10"), "valid.txt begins at step 1, before"),
        ("test.txt", None, "it lacks test.txt"),
        ("entity2id.txt", None, "it lacks entity2id.txt"),
        ("entity2id.txt", FILES["entity2id.txt"] + "Dan\t3\n", "it has 4 entities, expected 3"),
    ],
)
def test_a_wrong_copy_is_named_with_what_was_expected(tmp_path, file, text, message):
    folder = write_texts(tmp_path / "data" / "tiny", FILES)
    if text is None:
        (folder / "tiny" / file).unlink()
    else:
        (folder / "tiny" / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        load_benchmark(TINY, folder)
    assert str(folder / "tiny") in str(error.value)


def test_a_test_split_where_none_belongs_is_refused(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pack(Dataset("tiny", tiny_log(), 3, 4), folder / "tiny.npz")
    with pytest.raises(DataError, match="it has 2 test, expected 0"):
        load_benchmark(replace(TINY, test=None), folder)


# ---- packing -------------------------------------------------------------------------------------------------------


def odd_dataset() -> Dataset:
    names = ("a\nb", "", "é" * 300, "tab\t")
    steps = np.array([5, 70_000, 2_000_000_000])
    log = EventLog(
        *(np.array([0, 3, 2]), np.array([0, 0, 0]), np.array([1, 3, 0]), steps),
        *(Vocabulary("actor", names), Vocabulary("deed", ("r",)), Clock("integer", -7, 3)),
    )
    return Dataset("my own", log, 70_000)


@pytest.mark.parametrize("dataset", [Dataset("tiny", tiny_log(), 3, 4), odd_dataset()])
def test_packing_and_unpacking_gives_the_same_dataset(tmp_path, dataset):
    pack(dataset, tmp_path / "d.npz")
    assert same(unpack(tmp_path / "d.npz"), dataset)
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_every_cut_of_a_pack_is_a_data_error(tmp_path):
    pack(odd_dataset(), tmp_path / "d.npz")
    content = (tmp_path / "d.npz").read_bytes()
    for size in range(0, len(content), 7):
        (tmp_path / "cut.npz").write_bytes(content[:size])
        with pytest.raises(DataError, match=r"cut.npz is not a whole packed data set"):
            unpack(tmp_path / "cut.npz")


def test_a_flipped_byte_is_a_data_error_or_harmless(tmp_path):
    dataset = odd_dataset()
    pack(dataset, tmp_path / "d.npz")
    content = (tmp_path / "d.npz").read_bytes()
    refused = 0
    for place in range(0, len(content), 5):
        (tmp_path / "bad.npz").write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        try:
            assert same(unpack(tmp_path / "bad.npz"), dataset)
        except DataError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("arrays", [{"a": np.arange(3)}, {"about": np.frombuffer(b'{"format": 2}', np.uint8)}, None])
def test_a_foreign_file_is_a_data_error(tmp_path, arrays):
    path = tmp_path / "d.npz"
    if arrays is None:
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    else:
        np.savez(path, **arrays)
    with pytest.raises(DataError, match=r"d.npz is not a whole packed data set"):
        unpack(path)


def test_a_pack_with_objects_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "d.npz", about=np.array([{"format": 1}], dtype=object))
    with pytest.raises(DataError, match="not a whole packed data set"):
        unpack(tmp_path / "d.npz")


def test_a_missing_pack_and_an_unwritable_place_are_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"none.npz does not exist"):
        unpack(tmp_path / "none.npz")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        pack(odd_dataset(), tmp_path / "file" / "d.npz")


def test_a_pack_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    pack(odd_dataset(), tmp_path / "d.npz")
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(DataError, match="No space left"):
        pack(Dataset("tiny", tiny_log(), 3, 4), tmp_path / "d.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]
    assert same(unpack(tmp_path / "d.npz"), odd_dataset())


def test_benchmarks_load_with_nothing_but_numpy(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pack(Dataset("tiny", tiny_log(), 3, 4), folder / "tiny.npz")
    code = (
        "import sys\n"
        "for name in ('duckdb', 'torch', 'scipy', 'platformdirs', 'pooch', 'rich', 'typer'): sys.modules[name] = None\n"
        "from bridgemem.events.datasets import load_benchmark\n"
        "from bridgemem.events.packs import unpack\n"
        f"assert len(unpack({str(folder / 'tiny.npz')!r}).events) == 6"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


# ---- downloading ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror():
    """A local server of the tiny data set: files may be changed, and "short" cuts bodies off."""
    files = {f"/tiny/{name}": text.encode() for name, text in FILES.items()}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:-3] if "short" in files and self.path.endswith("valid.txt") else body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", files
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_verified_and_kept(tmp_path, mirror):
    url, _ = mirror
    path = download(TINY, tmp_path / "cache", url)
    assert [file.name for file in path.parent.iterdir()] == ["tiny.npz"]
    assert same(load_benchmark(TINY, tmp_path / "cache"), Dataset("tiny", tiny_log(), 3, 4))


def test_a_download_goes_to_the_user_cache_and_replaces_a_broken_copy(mirror):
    url, _ = mirror
    user_cache().mkdir(parents=True)
    (user_cache() / "tiny.npz").write_bytes(b"broken")
    download(TINY, base_url=url)
    assert len(load_benchmark(TINY).events) == 6


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("/tiny/train.txt", FILES["train.txt"].replace("2\t10", "0\t10").encode(), "the download .* fingerprint"),
        ("/tiny/test.txt", b"0\t1\t2\t40\n", "it has 1 test, expected 2"),
        ("/tiny/test.txt", b"<html>login</html>", "test.txt"),
        ("/tiny/valid.txt", None, r"valid.txt could not be downloaded \(HTTP Error 404.*--data-dir"),
        ("short", b"", r"valid.txt could not be downloaded \(.*bytes"),
    ],
)
def test_a_download_that_is_not_the_data_set_leaves_nothing(tmp_path, mirror, file, content, message):
    url, files = mirror
    if content is None:
        del files[file]
    else:
        files[file] = content
    with pytest.raises(DataError, match=message):
        download(TINY, tmp_path / "cache", url)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_server_that_does_not_answer_is_named(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match=rf"127.0.0.1:{port}/tiny/\w+.txt could not be downloaded .*refused"):
        download(TINY, tmp_path / "cache", f"http://127.0.0.1:{port}")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(DataError, match="could not be downloaded"):
        download(TINY, tmp_path / "cache", "no url at all")


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        download(TINY, tmp_path / "file")


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=CATALOG)
def test_every_data_set_has_a_source_for_every_file_it_needs(benchmark):
    if benchmark.resplit_of is not None:
        assert not benchmark.urls
        return
    names = {"entity2id.txt", "relation2id.txt"} | {f"{split}.txt" for split in benchmark.splits}
    assert set(benchmark.urls) == names
    assert all(url.startswith("https://") and url.endswith("/" + name) for name, url in benchmark.urls.items())


# ---- the real data sets --------------------------------------------------------------------------------------------

# entities, relations, train, valid, test, first and last step, and their dates
SIZES = {
    "icews14": (7_128, 230, 74_845, 8_514, 7_371, 1, 365, "2014-01-01", "2014-12-31"),
    "icews18": (23_033, 256, 373_018, 45_995, 49_545, 0, 303, "2018-01-01", "2018-10-31"),
    "icews05-15": (10_488, 251, 368_868, 46_302, 46_159, 0, 4016, "2005-01-01", "2015-12-31"),
    "gdelt": (7_691, 240, 1_734_399, 238_765, None, 0, 2591, "2018-01-01 00:00:00", "2018-01-27 23:45:00"),
    "wiki": (12_554, 24, 539_286, 67_538, 63_110, 0, 231, "0", "231"),
    "yago": (10_623, 10, 161_540, 19_523, 20_026, 0, 188, "0", "188"),
}


@pytest.mark.parametrize("name", SIZES)
def test_real_data_sets_have_the_papers_sizes_and_survive_packing(data_dir, tmp_path, name):
    dataset = load_benchmark(name, data_dir)
    events = dataset.events
    test = None if dataset.test_start is None else len(dataset.test)
    first, last = int(events.step[0]), int(events.step[-1])
    found = (events.n_entities, events.n_relations, len(dataset.train), len(dataset.valid), test, first, last)
    assert (*found, events.clock.label(first), events.clock.label(last)) == SIZES[name]
    assert events.fingerprint == CATALOG[name].fingerprint
    pack(dataset, tmp_path / f"{name}.npz")
    assert same(load_benchmark(name, tmp_path), dataset)


def test_the_resplit_of_gdelt_has_its_validation_as_test(data_dir, tmp_path):
    official = load_benchmark("gdelt", data_dir)
    pack(official, tmp_path / "gdelt.npz")
    dataset = load_benchmark("gdelt-resplit", tmp_path)
    assert dataset.name == "gdelt-resplit"
    assert dataset.test_start == official.valid_start
    assert len(dataset.test) == len(official.valid)
    assert len(dataset.train) + len(dataset.valid) == len(official.train)
    assert len(dataset.valid) / len(official.train) == pytest.approx(0.1, abs=0.001)
