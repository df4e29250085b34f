"""`bridgemem mine`: events, transitions and memory of a corpus that is larger than memory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from bridgemem.cli.aliases import show_merged
from bridgemem.cli.options import Aliases, Json, Quiet, Seed, Set, check_engine
from bridgemem.cli.output import counted, emit, say, warn
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.cli.rejects import RejectsFile
from bridgemem.progress import terminal_progress

ENGINES = ("duckdb", "spark")


def register(app: typer.Typer) -> None:
    app.command()(mine)


@reads_events
def mine(
    events: Annotated[
        list[str], typer.Argument(help="Event files, globs, Delta tables, iceberg:// names or s3:// URLs.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder; also the working directory.")],
    engine: Annotated[str, typer.Option("--engine", help="duckdb: this machine; spark: a cluster.")] = "duckdb",
    memory: Annotated[str, typer.Option("--memory", help="Memory limit, e.g. 2GB; more is spilled to disk.")] = "2GB",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Number of sorting threads (default: 2).")] = 2,
    master: Annotated[str, typer.Option("--master", help="Spark master URL, for --engine spark.")] = "",
    tables: Annotated[
        str, typer.Option("--tables", help="URI for the workers' results, reachable by all (default: a folder in OUT).")
    ] = "",
    *,
    reading: ReadOptions,
    entities: Annotated[Path | None, typer.Option(help="File of entity names and ids used by the events.")] = None,
    relations: Annotated[Path | None, typer.Option(help="File of relation names and ids used by the events.")] = None,
    aliases: Aliases = None,
    rejects: RejectsFile = None,
    set_: Set = None,
    seed: Seed = 42,
    force: Annotated[bool, typer.Option("--force", help="Start over and replace an earlier result.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Index events out of core, for `fit -d OUT`: events, memory index, count table, sampled examples."""
    from bridgemem.config import Settings
    from bridgemem.storage.schema import override

    _check_engine(engine, master, bool(entities or relations), bool(aliases or rejects))
    settings = override(Settings(), set_ or [])
    how: dict[str, Any] = {"options": reading, "seed": seed, "force": force}
    with terminal_progress(quiet=quiet) as progress, _stoppable(out, goes_on=engine == "duckdb" and not force):
        if engine == "spark":
            from bridgemem.outofcore.spark import mine_on_spark

            done = mine_on_spark(events, out, master, settings, tables=tables or None, progress=progress, **how)
        else:
            from bridgemem.events.aliases import read_aliases
            from bridgemem.events.limits import bytes_of
            from bridgemem.events.readers.id_files import read_vocabulary
            from bridgemem.events.readers.rejects import check_name
            from bridgemem.outofcore.duckdb import Limits, mine_files

            how["entities"] = read_vocabulary(entities, "entity") if entities else None
            how["relations"] = read_vocabulary(relations, "relation") if relations else None
            how["aliases"] = read_aliases(aliases) if aliases else None
            how["rejects"] = check_name(rejects) if rejects else None
            limits = Limits(bytes_of(memory), threads)
            done = mine_files(events, out, settings, limits=limits, progress=progress, **how)
    emit(done, as_json, lambda: _show(done, out, rejects))


def _check_engine(engine: str, master: str, named: bool, cleaned: bool) -> None:
    """Refuse options that do not go with the engine; named: with vocabularies; cleaned: with aliases or rejects."""
    from bridgemem.errors import SettingsError

    check_engine(engine, master, ENGINES)
    if engine == "spark" and named:
        raise SettingsError("--entities and --relations go with --engine duckdb; Spark numbers the names it finds.")
    if engine == "spark" and cleaned:
        raise SettingsError("--aliases and --rejects go with --engine duckdb; leave them out.")


def _show(done: dict[str, Any], out: Path, rejects: Path | None) -> None:
    from bridgemem.events.aliases import Merged, MergedName
    from bridgemem.events.readers.read import left_out_sentence

    say(f"Mined {counted(done['events'], 'event')} between {counted(done['pairs'], 'ordered pair')} into {out}.")
    say(f"  {counted(done['examples'], 'example')} counted, {done['sampled']:,} of them kept to train on")
    names = f"{counted(done['n_entities'], 'entity')}, {counted(done['n_relations'], 'relation')}"
    say(f"  {names}, fingerprint {done['fingerprint']}")
    source = done["source"]
    for remark in source["remarks"]:
        say(f"  {remark}")
    if source["dropped"]:
        say(f"  {left_out_sentence(source['dropped'])}")
    if source["rejected"]:
        say(f"  rejected: {counted(source['rejected'], 'row')}, where a name or a time cannot be used")
    if rejects is not None and (source["rejected"] or source["dropped"]):
        say(f"  the rejected rows are in {rejects}")
    if merged := done.get("merged"):
        show_merged(Merged(tuple(MergedName(*row) for row in merged["names"]), merged["rows"], merged["loops"]))
    say(f"Next: bridgemem fit -d {out} --out RUN")


@contextmanager
def _stoppable(out: Path, goes_on: bool) -> Iterator[None]:
    """Ctrl-C and a polite kill end the work between two steps, with a word on how to go on."""
    from bridgemem.outofcore.base import DONE

    state = "is as it was" if (out / DONE).is_file() else "is not whole yet"
    then = "continues where this one stopped" if goes_on else "starts over"

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        warn(f"bridgemem: interrupted; {out} {state}, and the same command {then}.")
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)
