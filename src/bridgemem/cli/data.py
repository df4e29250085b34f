"""`bridgemem data`: list, check, stats, import, pack and download."""

from __future__ import annotations

import glob
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.aliases import aliases as aliases_command
from bridgemem.cli.aliases import show_merged
from bridgemem.cli.options import Aliases, DataDir, Json, Quiet, SplitAt, source_of
from bridgemem.cli.output import check_new, counted, emit, say, table, warn
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.cli.rejects import RejectsFile, kept, rejects_to, show_rejects
from bridgemem.progress import terminal_progress

app = typer.Typer(help="The data sets: named ones and your own.", no_args_is_help=True, rich_markup_mode=None)
Sources = Annotated[list[str], typer.Argument(help="Same as for `fit -d`; several files are allowed.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing packed data set.")]
app.command()(aliases_command)


def _in_folders(sources: list[str]) -> list[str]:
    """The sources, with the files of a folder of train, valid and test in its place."""
    from bridgemem.events.folders import is_folder, split_files

    listed = ([str(path) for path in split_files(Path(one)).values()] if is_folder(one) else [] for one in sources)
    return [name for one, files in zip(sources, listed, strict=True) for name in files or [one]]


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the named data sets and which of them are on this machine."""
    from bridgemem.events.datasets import CATALOG, benchmark_status

    found: list[dict[str, str | None]] = []
    for name in CATALOG:
        status = benchmark_status(name, data_dir)
        found.append(
            {"name": name, "title": status.benchmark.title, "found": str(status.copy) if status.copy else None}
        )
    found.append({"name": "world", "title": "the simulated world", "found": "built in"})

    def text() -> None:
        rows = [[f["name"] or "", f["title"] or "", f["found"] or "not found"] for f in found]
        table("Data sets", ["name", "what", "where"], rows)

    emit({"datasets": found}, as_json, text)


@app.command()
@reads_events
def check(
    sources: Annotated[
        list[str], typer.Argument(help="Files of events or globs; or one named data set, world or packed .npz.")
    ],
    *,
    reading: ReadOptions,
    rejects: RejectsFile = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every row and summarise the events; exit code 2 if any row is rejected."""
    from bridgemem.events.feeds import Feed
    from bridgemem.events.loading import is_split, loaded
    from bridgemem.events.readers.check import check_events
    from bridgemem.events.readers.files import find_files
    from bridgemem.events.readers.lakes import in_lake
    from bridgemem.events.readers.read import Rejects
    from bridgemem.events.readers.text import KEPT_REJECTS

    fingerprint = None
    with terminal_progress(quiet=quiet) as progress, rejects_to(rejects) as write:
        alone = sources[0] if len(sources) == 1 else ""
        if alone and (is_split(alone) or not (in_lake(alone) or Path(alone).exists() or glob.has_magic(alone))):
            events = loaded(alone, reading, data_dir=data_dir, progress=progress).events
            feed, fingerprint = Feed.of(events), events.fingerprint
            bad, sentences = Rejects((), 0, len(events)), [f"All {len(events):,} events are as they should be."]
        else:
            found = check_events(
                sources if any(map(in_lake, sources)) else find_files(_in_folders(sources)),
                reading,
                kept=kept(rejects),
                progress=progress,
            )
            feed, bad, sentences = found.feed, found.rejects, [found.source, found.sentence()]
        write(bad.all())

    def text() -> None:
        for sentence in sentences:
            say(sentence)
        show_rejects(bad)
        for sentence in feed.sentences():
            say(sentence)

    for remark in feed.remarks:
        warn(remark)
    listed = {"rejected": bad.count, "fingerprint": fingerprint, "rejects": bad.rows[:KEPT_REJECTS]}
    emit({**asdict(feed), **listed}, as_json, text)
    if bad.count:
        raise typer.Exit(2)


@app.command()
@reads_events
def stats(
    sources: Sources,
    *,
    reading: ReadOptions,
    split_at: SplitAt = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the sizes of a data set: entities, relations, splits, steps, examples, reader parameters."""
    from bridgemem.events.feeds import fine_steps_of
    from bridgemem.events.loading import is_split, loaded
    from bridgemem.evidence.stats import describe

    source = source_of(sources)
    with terminal_progress(quiet=quiet) as progress:
        dataset = loaded(source, reading, split_at=split_at, data_dir=data_dir, progress=progress)
        found = describe(dataset, progress)

    def text() -> None:
        splits = found["splits"]
        say(
            f"{dataset.name}: {counted(found['entities'], 'entity')}, {counted(found['relations'], 'relation')}, "
            f"{counted(found['events'], 'event')}"
        )
        say("  " + ", ".join(f"{name} {size:,}" for name, size in splits.items()))
        say(f"  steps {found['steps']:,} ({found['first']} to {found['last']})")
        say(f"  fingerprint {found['fingerprint']}, of ids and steps")
        say(f"  identity {found['identity']}, also of names, clock and split boundaries")
        say(f"  a step is {found['step']}")
        say(f"  transition examples in train {found['transition_examples']:,}")
        say(f"  parameters of the reader {found['reader_parameters']:,}")

    if "test" not in found["splits"]:
        warn(f"{dataset.name} has no test split; commands use its validation split instead.")
    if is_split(source) and (remark := fine_steps_of(dataset.events)):  # of other sources the reading says it
        warn(remark)
    emit(found, as_json, text)


@app.command("import")
@reads_events
def import_(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="CSV, TSV or Parquet files or globs of subject, relation, object, time (train, valid and test keep "
            "their split), or a folder of them; "
            "or files of GDELT, ICEWS, POLECAT or ACLED. A gz or zip is unpacked. Also Delta tables, "
            "iceberg://CATALOG/NAMESPACE.TABLE and s3:// URLs."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The packed data set to write, ending in .npz.")],
    *,
    reading: ReadOptions,
    valid: Annotated[
        float | None, typer.Option(help="Share of the events, by time, for validation (default: 0.1).")
    ] = None,
    test: Annotated[float | None, typer.Option(help="Share of the events, by time, for test (default: 0.1).")] = None,
    split_at: SplitAt = None,
    aliases: Aliases = None,
    rejects: RejectsFile = None,
    strict: Annotated[bool, typer.Option(help="Refuse the whole import if any row is rejected.")] = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read your own events once, split them by time, and keep them as one packed file."""
    from bridgemem.errors import SettingsError
    from bridgemem.events.aliases import merged, read_aliases
    from bridgemem.events.loading import Cut, read_source
    from bridgemem.events.packs import pack
    from bridgemem.events.readers.files import find_files
    from bridgemem.events.readers.lakes import in_lake

    if out.suffix != ".npz":
        raise SettingsError(f"the packed data set must end in .npz, as in {out.with_suffix('.npz')}.")
    check_new(out, force)
    with terminal_progress(quiet=quiet) as progress:
        files = sources if any(map(in_lake, sources)) else find_files(_in_folders(sources))
        cut = Cut.of(valid, test, split_at)
        with rejects_to(rejects) as write:
            dataset, found = read_source(out.stem, files, reading, cut, strict, kept(rejects), progress)
            write(found.rejects.all())
        table = {} if aliases is None else read_aliases(aliases)
        pack(dataset, out, force, aliases=table)
    report = merged(dataset.events, table)[1] if table else None
    splits = dataset.sizes
    result = {
        "out": out,
        "format": found.format,
        "columns": found.columns,
        "events": len(found.events),
        "step": found.events.clock.length(),
        "splits": splits,
        "merged": report and report.names,
        "dropped": found.dropped,
        "rejected": found.rejects.count,
        "rejects": found.rejects.rows[:100],
        "remarks": found.remarks,
    }

    def text() -> None:
        say(found.source())
        say(found.sentence())
        show_rejects(found.rejects)
        if report is not None:
            show_merged(report)
        say(f"A step is {found.events.clock.length()}.")
        say(f"Wrote {out}: " + ", ".join(f"{name} {size:,}" for name, size in splits.items()) + ".")

    if found.fine:
        warn(found.fine)
    emit(result, as_json, text)


@app.command("pack")
def pack_(
    names: Annotated[list[str], typer.Argument(help="Named data sets, world, or folders of train, valid and test.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The packed file, ending in .npz; else a folder for them.")],
    data_dir: DataDir = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write data sets as compact files that load with numpy alone."""
    from bridgemem.errors import SettingsError
    from bridgemem.events.loading import load
    from bridgemem.events.packs import pack

    if out.suffix in (".csv", ".tsv", ".txt", ".json", ".parquet", ".npy", ".gz", ".zip") and not out.is_dir():
        raise SettingsError(f"{out} ends in {out.suffix}; give a file that ends in .npz, or a folder.")
    if out.suffix == ".npz" and len(names) > 1:
        raise SettingsError(f"{out} is one file, and {len(names)} data sets are named; give a folder for them.")
    paths = {name: out if out.suffix == ".npz" else out / f"{Path(name).name.split('.')[0]}.npz" for name in names}
    for path in paths.values():
        check_new(path, force)
    written = {}
    with terminal_progress(quiet=quiet) as progress:
        for name, path in paths.items():
            pack(load(name, data_dir=data_dir, progress=progress), path, force)
            written[path] = path.stat().st_size

    def text() -> None:
        for path, size in written.items():
            say(f"{path}  {size:,} bytes")

    emit({"files": [{"path": path, "bytes": size} for path, size in written.items()]}, as_json, text)


@app.command("download")
def download_(
    name: Annotated[str, typer.Argument(help="A named data set.")],
    base_url: Annotated[str | None, typer.Option(help="Mirror that serves the same files.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a named data set from its public source into the cache, verified by its fingerprint."""
    from bridgemem.events.datasets import download

    with terminal_progress(quiet=quiet) as progress:
        folder = download(name, base_url=base_url, progress=progress)
    emit({"folder": folder}, as_json, lambda: say(f"{name} is in {folder}, and its content is the expected one."))
