"""The named data sets: where to find or download them, and what they must contain."""

from __future__ import annotations

import http.client
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.dataset import Dataset
from bridgemem.events.folders import Split, joined, read_split, split_files
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.packs import pack, unpack
from bridgemem.events.readers.options import ReadOptions
from bridgemem.progress import SILENT, Progress

DAY = 86_400


@dataclass(frozen=True)
class Benchmark:
    """A named data set: the sizes and the fingerprint that every copy must have, and where the public one lies.

    unit: the length of a step in the files' own times, so that step = time / unit.
    test: None where no test split exists.
    sorted_train: public copies differ in the order of rows inside a step of train; sorting them by subject,
        relation and object makes one data set of them.
    resplit_of: the data set whose official validation is the test here, and whose last tenth of train is validation.
    """

    name: str
    title: str
    unit: int
    clock: Clock
    entities: int
    relations: int
    train: int
    valid: int
    test: int | None
    fingerprint: str
    source: str
    urls: Mapping[str, str] = field(default_factory=dict)
    sorted_train: bool = False
    resplit_of: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "valid") if self.test is None else ("train", "valid", "test")


def _clock(first_step: int, date: str, seconds: int) -> Clock:
    moment = int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp())
    return Clock("date", moment - first_step * seconds, seconds)


def _github(repository: str, commit: str, folder: str, *files: str) -> dict[str, str]:
    return {file: f"https://raw.githubusercontent.com/{repository}/{commit}/{folder}/{file}" for file in files}


_ICEWS = "ICEWS Coded Event Data (Harvard Dataverse, doi:10.7910/DVN/28075), under its terms of use; split of "
_GDELT = "The GDELT Project (gdeltproject.org), free to use with citation; split of RE-Net"
_RENET = "INK-USC/RE-Net"
_RENET_YEARS, _RENET_NAMES = "6ea8383af38d8afdcfe6e928bcae72841af72672", "9264ba7c204c8e869cde1c51511f613434f5a353"
# the RE-GCN splits as plain files, and the names of the ids of two RE-Net ones
_KGMH = "LiaoMengqi/KGMH"
_KGMH_OLD, _KGMH_NEW = "21face01c10d497147613e38aec4cbbd69b29073", "9cbde266bf4943254f8aac119303e769187e61ae"
_KGMH_FOLDER = "data/temporal/extrapolation"
_NAMES = ("entity2id.txt", "relation2id.txt")

CATALOG: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="icews14",
            title="political events of 2014, by day",
            unit=1,
            clock=_clock(1, "2014-01-01", DAY),
            entities=7_128,
            relations=230,
            train=74_845,
            valid=8_514,
            test=7_371,
            fingerprint="71e475e9074002e4",
            source=_ICEWS + "RE-GCN (ICEWS14s)",
            urls=_github(_KGMH, _KGMH_NEW, f"{_KGMH_FOLDER}/ICEWS14s", "train.txt", *_NAMES)
            | _github(_KGMH, _KGMH_OLD, "data/ICEWS14s", "valid.txt", "test.txt"),
        ),
        Benchmark(
            name="icews18",
            title="political events of January to October 2018, by day",
            unit=24,
            clock=_clock(0, "2018-01-01", DAY),
            entities=23_033,
            relations=256,
            train=373_018,
            valid=45_995,
            test=49_545,
            fingerprint="92cc679b44367a5a",
            source=_ICEWS + "RE-Net",
            urls=_github(_RENET, "master", "data/ICEWS18", "train.txt")
            | _github(_RENET, "c497e16b93cceec14c222f81d0dff75aa4169beb", "data/ICEWS18", "valid.txt", "test.txt")
            | _github(_KGMH, _KGMH_OLD, "data/ICEWS18", *_NAMES),
        ),
        Benchmark(
            name="icews05-15",
            title="political events of 2005 to 2015, by day",
            unit=1,
            clock=_clock(0, "2005-01-01", DAY),
            entities=10_488,
            relations=251,
            train=368_868,
            valid=46_302,
            test=46_159,
            fingerprint="313f5e9c021696df",
            source=_ICEWS + "RE-GCN",
            urls=_github(
                "ryuukousho/Cog-RMH", "35b1b6b4b0306eb93dde9ac6e16e88836d072bdc", "data/ICEWS05-15", "train.txt"
            )
            | _github(_KGMH, _KGMH_NEW, f"{_KGMH_FOLDER}/ICEWS05-15", "valid.txt", *_NAMES)
            | _github(_KGMH, _KGMH_OLD, "data/ICEWS05-15", "test.txt"),
        ),
        Benchmark(
            name="wiki",
            title="Wikidata facts, by year",
            unit=1,
            clock=Clock("integer", 0, 1),
            entities=12_554,
            relations=24,
            train=539_286,
            valid=67_538,
            test=63_110,
            fingerprint="72206782ca6e66cd",
            source="Wikidata (CC0); split of RE-Net",
            urls=_github(_RENET, "master", "data/WIKI", "train.txt")
            | _github(_RENET, _RENET_YEARS, "data/WIKI", "valid.txt", "test.txt")
            | _github(_RENET, _RENET_NAMES, "data/WIKI", *_NAMES),
            sorted_train=True,
        ),
        Benchmark(
            name="yago",
            title="facts of YAGO, by year",
            unit=1,
            clock=Clock("integer", 0, 1),
            entities=10_623,
            relations=10,
            train=161_540,
            valid=19_523,
            test=20_026,
            fingerprint="ad96c300acbd51e8",
            source="YAGO (CC BY 4.0); split of RE-Net",
            urls=_github(_RENET, _RENET_YEARS, "data/YAGO", "train.txt", "valid.txt", "test.txt")
            | _github(_RENET, _RENET_NAMES, "data/YAGO", *_NAMES),
        ),
        Benchmark(
            name="gdelt",
            title="GDELT events of January 2018, by quarter of an hour",
            unit=15,
            clock=_clock(0, "2018-01-01", 15 * 60),
            entities=7_691,
            relations=240,
            train=1_734_399,
            valid=238_765,
            test=None,
            fingerprint="2e961e55942d2a2f",
            source=_GDELT,
            urls=_github(_RENET, "master", "data/GDELT", "train.txt", "valid.txt")
            | _github(_RENET, "3b270d8eede1fb747f732c654a1e7c01104684af", "data/GDELT", "relation2id.txt")
            | _github(_KGMH, _KGMH_NEW, f"{_KGMH_FOLDER}/GDELT", "entity2id.txt"),
            sorted_train=True,
        ),
        Benchmark(
            name="gdelt-resplit",
            title="gdelt with its validation as test, and the last tenth of its train as validation",
            unit=15,
            clock=_clock(0, "2018-01-01", 15 * 60),
            entities=7_691,
            relations=240,
            train=1_560_621,
            valid=173_778,
            test=238_765,
            fingerprint="2e961e55942d2a2f",
            source=_GDELT + ", cut anew",
            resplit_of="gdelt",
        ),
    )
}


@dataclass(frozen=True)
class Status:
    """Whether a data set is at hand: the copy that would be loaded, or None, and the folders that were searched."""

    benchmark: Benchmark
    copy: Path | None
    searched: tuple[Path, ...]


def find_benchmark(name: str) -> Benchmark:
    """The catalog entry of a name."""
    if name not in CATALOG:
        raise NotFoundError(f"there is no data set called {name!r}: choose one of {', '.join(CATALOG)}.")
    return CATALOG[name]


def load_benchmark(
    name: str | Benchmark, data_dir: str | Path | None = None, *, progress: Progress = SILENT
) -> Dataset:
    """Load a named data set from data_dir, $BRIDGEMEM_DATA or the user cache, and verify its content.

    Each of these folders may hold ``<name>.npz``, as ``pack`` writes it, or ``<name>/train.txt`` (or .gz) and so on.
    """
    benchmark = find_benchmark(name) if isinstance(name, str) else name
    copy = next(_copies(benchmark, data_dir), None)
    if copy is None and benchmark.resplit_of is not None:
        dataset = _resplit(benchmark, load_benchmark(benchmark.resplit_of, data_dir, progress=progress))
        _verify(benchmark, dataset, benchmark.resplit_of)
        return dataset
    if copy is None:
        raise NotFoundError(
            f"the data set {benchmark.name} was not found: run `bridgemem data download {benchmark.name}`, "
            f"or name the folder that holds {benchmark.name}/train.txt with --data-dir or BRIDGEMEM_DATA."
        )
    dataset = unpack(copy) if copy.suffix == ".npz" else _read_folder(benchmark, copy, progress)
    _verify(benchmark, dataset, str(copy))
    return dataset


def benchmark_name(dataset: Dataset) -> str:
    """The catalog's name of a data set with the content and the split of that entry; "" for own data of any name."""
    benchmark = CATALOG.get(dataset.name)
    return benchmark.name if benchmark is not None and is_benchmark(benchmark, dataset) else ""


def is_benchmark(benchmark: Benchmark, dataset: Dataset) -> bool:
    """Whether a data set has the content and the split of a catalog entry."""
    try:
        _verify(benchmark, dataset, dataset.name)
    except DataError:
        return False
    return True


def as_named(dataset: Dataset) -> Dataset:
    """The named data set that has the content and the split of this one, under any name; else this one."""
    for benchmark in CATALOG.values():
        if benchmark.resplit_of is None and is_benchmark(benchmark, dataset):
            return replace(dataset, name=benchmark.name, events=replace(dataset.events, clock=benchmark.clock))
    return dataset


def benchmark_status(name: str, data_dir: str | Path | None = None) -> Status:
    """Where a named data set would be loaded from; its content is not verified."""
    benchmark = find_benchmark(name)
    held = [benchmark] if benchmark.resplit_of is None else [benchmark, find_benchmark(benchmark.resplit_of)]
    copies = (copy for each in held for copy in _copies(each, data_dir))
    return Status(benchmark, next(copies, None), tuple(_folders(data_dir)))


def user_cache() -> Path:
    """Where downloads are kept: $BRIDGEMEM_HOME/data, or the user's cache folder."""
    if home := os.environ.get("BRIDGEMEM_HOME"):
        return Path(home) / "data"
    import platformdirs

    return Path(platformdirs.user_cache_dir("bridgemem")) / "data"


def _folders(data_dir: str | Path | None) -> Iterator[Path]:
    if data_dir is not None:
        yield Path(data_dir)
    if folder := os.environ.get("BRIDGEMEM_DATA"):
        yield Path(folder)
    yield user_cache()


def _copies(benchmark: Benchmark, data_dir: str | Path | None) -> Iterator[Path]:
    for folder in _folders(data_dir):
        packed = folder / f"{benchmark.name}.npz"
        if packed.is_file():
            yield packed
        texts = folder / benchmark.name
        if (texts / "train.txt").is_file() or (texts / "train.txt.gz").is_file():
            yield texts


# ---- content -------------------------------------------------------------------------------------------------------


def _read_folder(benchmark: Benchmark, folder: Path, progress: Progress) -> Dataset:
    """A data set from its text files: train, valid and test of four columns, and the names of the ids."""
    files = {part: path for part, path in split_files(folder).items() if part in benchmark.splits}
    if lacking := [f"{part}.txt" for part in benchmark.splits if part not in files]:
        raise DataError(f"{folder} is not {benchmark.name}: it lacks {', '.join(lacking)}.")
    split = Split(benchmark.name, files, folder, is_folder=True)
    dataset, _ = read_split(split, ReadOptions(step=benchmark.unit), progress)
    logs = [replace(dataset.split(part), clock=benchmark.clock) for part in benchmark.splits]
    if benchmark.sorted_train:
        logs[0] = _sorted(logs[0])
    return joined(benchmark.name, list(files.values()), logs)


def _sorted(log: EventLog) -> EventLog:
    order = np.lexsort((log.object, log.relation, log.subject, log.step))
    columns = (log.subject[order], log.relation[order], log.object[order], log.step[order])
    return EventLog(*columns, log.entities, log.relations, log.clock)


def _resplit(benchmark: Benchmark, official: Dataset) -> Dataset:
    """Cut before the step that holds the first event of the last tenth of train; a step is never divided."""
    steps = official.train.step
    return Dataset(benchmark.name, official.events, int(steps[len(steps) * 9 // 10]), official.valid_start)


def _verify(benchmark: Benchmark, dataset: Dataset, place: str) -> None:
    """Compare sizes first, because they tell more than a digest, then the whole content."""
    events = dataset.events
    found = {"entities": events.n_entities, "relations": events.n_relations}
    found |= {split: len(dataset.split(split)) for split in benchmark.splits}
    if benchmark.test is None and dataset.test_start is not None:
        found["test"] = len(dataset.test)
    for part, size in found.items():
        expected = getattr(benchmark, part)
        if size != expected:
            raise DataError(f"{place} is not {benchmark.name}: it has {size:,} {part}, expected {expected or 0:,}.")
    if events.fingerprint != benchmark.fingerprint:
        raise DataError(
            f"{place} is not {benchmark.name}: the fingerprint of its content is {events.fingerprint}, "
            f"expected {benchmark.fingerprint}."
        )


# ---- download ------------------------------------------------------------------------------------------------------


def download(
    name: str | Benchmark,
    cache_dir: str | Path | None = None,
    base_url: str | None = None,
    *,
    progress: Progress = SILENT,
) -> Path:
    """Fetch a named data set from its public source, verify it and keep it packed in the cache.

    base_url: a mirror that holds ``<name>/train.txt`` and so on, instead of the public source.
    Everything happens in a temporary folder; the cache gets the verified file or nothing.
    """
    benchmark = find_benchmark(name) if isinstance(name, str) else name
    if benchmark.resplit_of is not None:
        benchmark = find_benchmark(benchmark.resplit_of)
    folder = user_cache() if cache_dir is None else Path(cache_dir)
    place = folder / f"{benchmark.name}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{benchmark.name}-", dir=folder) as aside:
            with progress.task(f"downloading {benchmark.name}", total=len(benchmark.urls)) as advance:
                for file, public in benchmark.urls.items():
                    url = f"{base_url.rstrip('/')}/{benchmark.name}/{file}" if base_url else public
                    _fetch(url, Path(aside) / file, benchmark.name)
                    advance(1, note=file)
            dataset = _read_folder(benchmark, Path(aside), progress)
            _verify(benchmark, dataset, f"the download from {base_url or benchmark.urls['train.txt']}")
            pack(dataset, place)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}.") from None
    return place


def _fetch(url: str, path: Path, name: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=60) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file)
            expected = response.headers.get("Content-Length")
        if expected is not None and int(expected) != path.stat().st_size:
            raise OSError(f"it ended after {path.stat().st_size:,} of {int(expected):,} bytes")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(
            f"{url} could not be downloaded ({error}): try again, or bring your own copy of {name} "
            f"with --data-dir or BRIDGEMEM_DATA."
        ) from None
