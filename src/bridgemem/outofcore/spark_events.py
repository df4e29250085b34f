"""Events in Spark: Parquet files, folders and tables wherever Spark reaches, with names and times as numbers.

The rules are those of `events.read` and of the DuckDB engine, so that every engine numbers the same events alike. The
driver sees the distinct names, the distinct texts of times and the sizes of the files, never the events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.events.clock import DAY, Clock
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.table import INTEGER, Heading, joined_parts
from bridgemem.events.readers.values import lacking
from bridgemem.events.times import (
    UNDERSTOOD,
    clock_for,
    epoch_remark,
    fine_steps,
    read_times,
    shorter_than_day,
    week_remark,
    whole_numbers,
)
from bridgemem.events.whole_numbers import plain_number_sql
from bridgemem.outofcore.sources import LAST_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "whole"),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "date"),
    "string": "text",
}
TABLE = re.compile(r"\w+\.`.+`|[\w-]+(\.[\w-]+)+")
ENDINGS = re.compile(r"\.(parquet|parq|pq)$", re.IGNORECASE)
ORDER = "order"
MANY = 1_000_000  # names: beyond this Spark sorts and merges instead of sending all of them to every worker
SPACES = r"' \t\n\u000b\u000c\r'"
DIGITS = "^-?(0|[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class Numbered:
    """Events as whole numbers: a DataFrame of subject, relation, object, step, order, and what the numbers mean.

    total: rows that were read, also those that are no events. files: how many files and tables they came from.
    dropped: rows that lack a value, by what they lack first. remarks: how times were read, each a sentence.
    """

    events: DataFrame
    clock: Clock
    entities: list[str]
    relations: list[str]
    total: int
    files: int
    dropped: dict[str, int]
    remarks: list[str]


@dataclass(frozen=True)
class _Raw:
    """Rows as they were read: subject, relation, object, time and order, and the kind of each role.

    options: how the rows are to be read. total, files: how many rows, files and tables.
    """

    rows: DataFrame
    kinds: dict[str, str]
    options: ReadOptions
    total: int
    files: int

    def missing(self, role: str) -> str:
        """SQL that is true where a row lacks a role."""
        marks = sorted(self.options.missing())
        if self.kinds[role] != "text":
            numbers = [mark for mark in marks if INTEGER.fullmatch(mark) and self.kinds[role] == "whole"]
            return f"({role} IS NULL{''.join(f' OR {role} = {number}' for number in numbers)})"
        return f"({role} IS NULL OR {role} IN ({', '.join(map(_quoted, marks))}))"

    def dropped(self) -> dict[str, int]:
        """How many rows lack a value, by what they lack first."""
        lacks = "".join(f" WHEN {self.missing(role)} THEN '{role}'" for role in ROLES)
        marks = "".join(f" WHEN '{role}' THEN CAST({role} AS STRING)" for role in ROLES)
        rows = self.rows.selectExpr("*", f"CASE{lacks} END AS role").where("role IS NOT NULL")
        marked = rows.selectExpr("role", f"coalesce(CASE role{marks} END, '') AS mark")
        counted = marked.groupBy("role", "mark").count().collect()
        return lacking([(row["role"], row["mark"], row["count"]) for row in counted])

    def filled(self) -> str:
        """SQL that is true where a row names both parties and the relation."""
        parts = [f"NOT {self.missing(role)}" for role in ROLES[:3]]
        return " AND ".join(parts + [f"{role} >= 0" for role in ROLES[:3] if self.kinds[role] == "whole"])


def numbered(spark: SparkSession, sources: Iterable[str], options: ReadOptions) -> Numbered:
    """Read sources and number what they hold.

    sources: paths, globs, folders and URIs of Parquet, all passed to Spark as they are; or tables of a catalog, as
    catalog.schema.table or delta.`URI`, which need a whole-number column `order` that tells events of one step apart.
    """
    if options.format not in ("auto", "plain"):
        raise SettingsError("Spark reads plain tables: leave --format out, and name the columns.")
    raw = _read(spark, list(sources), replace(options, format="plain"))
    clock, timed, remarks = _timed(spark, raw)
    entities, relations = _names("entity", timed, ("subject", "object")), _names("relation", timed, ("relation",))
    for role, names in (("subject", entities), ("object", entities), ("relation", relations)):
        timed = _with_ids(spark, timed, role, names)
    whole_numbers = [f"CAST(`{c}` AS BIGINT) AS `{c}`" for c in ("subject", "relation", "object", "step", ORDER)]
    events = timed.selectExpr(*whole_numbers).where("subject >= 0 AND object >= 0 AND relation >= 0")
    listed = [names if isinstance(names, list) else [str(i) for i in range(names)] for names in (entities, relations)]
    return Numbered(events, clock, listed[0], listed[1], raw.total, raw.files, raw.dropped(), remarks)


# ---- reading -------------------------------------------------------------------------------------------------------


def _read(spark: SparkSession, sources: Sequence[str], options: ReadOptions) -> _Raw:
    if not sources:
        raise DataError("no file was given to mine; name one.")
    paths = [source for source in sources if not is_table(source)]
    tables = [source for source in sources if is_table(source)]
    if paths and tables:
        raise DataError("files and tables cannot be mined together: give one kind of them at a time.")
    if tables:
        return _read_tables(spark, tables, options)
    return _read_files(spark, paths, options)


def is_table(source: str) -> bool:
    """Whether a source names a table of a catalog and not a place."""
    return bool(TABLE.fullmatch(source)) and not ENDINGS.search(source)


def _read_files(spark: SparkSession, paths: Sequence[str], options: ReadOptions) -> _Raw:
    from pyspark.sql import functions as F

    files = _files(spark, paths)
    first = spark.read.parquet(files[0])
    roles = _roles(files[0], first, options)
    kinds = {role: of.kind for role, of in roles.items()}
    # one schema for all files: a column that is there in another kind is refused by Spark, with the name of the file
    used = {column: kind for of in roles.values() for column, kind in of.columns}
    wide = ", ".join(f"{_identifier(column)} {_width(first, column, kind)}" for column, kind in used.items())
    table = spark.read.schema(wide).parquet(*files)
    place, row = F.col("_metadata.file_path").alias("file"), F.col("_metadata.row_index").alias("row")
    found = table.select(*(of.value(options).alias(role) for role, of in roles.items()), place, row)
    sums = [F.count("*").alias("n")]
    sums += [F.count(F.expr(_identifier(column))).alias(f"in {i}") for i, column in enumerate(used)]
    counted = {_bare(unquote(row["file"])): row for row in table.groupBy(place).agg(*sums).collect()}
    for file, of in sorted(counted.items()):
        # a file that lacks a column reads as empty in it
        if any(of[f"in {i}"] == 0 for i in range(len(used))):
            Heading(spark.read.parquet(file).columns, options).places(file)
    starts, total = [], 0
    for file in map(_bare, files):
        if of := counted.pop(file, None):
            starts.append((of["file"], total))
            total += of["n"]
    if counted:
        raise RunError(f"Spark read {min(counted)}, which it did not list; give that file by its name.")
    if not total:
        raise DataError(
            f"no event was found in {len(files)} files, {files[0]} first; run `bridgemem data check` on it."
        )
    begins = F.broadcast(spark.createDataFrame(starts, "file string, start long"))
    placed = found.join(begins, "file").select(*ROLES, (F.col("start") + F.col("row")).alias(ORDER))
    return _Raw(placed, kinds, options, total, len(files))


def _files(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """The files of paths, in the order given, and in the order of names where a path stands for several."""
    files: list[str] = []
    for path in paths:
        # any schema will do, and saves Spark from looking for the right one
        found = spark.read.schema("a int").parquet(path).inputFiles()
        if not found:
            raise DataError(f"{path} holds no file that Spark reads; names that begin with _ or . are hidden from it.")
        files += sorted(map(unquote, found))
    if len(set(files)) < len(files):
        twice = min(file for file in files if files.count(file) > 1)
        raise DataError(f"{twice} is named twice, and its events would count twice; name it once.")
    return files


def _bare(file: str) -> str:
    # the same file is file:/x in one place and file:///x in another
    return re.sub(r"^file:/+", "file:/", file)


def _read_tables(spark: SparkSession, names: Sequence[str], options: ReadOptions) -> _Raw:
    from pyspark.sql import functions as F

    if len(names) > 1:
        raise DataError("one table is mined at a time: make a view of several with one order over all of them.")
    table = spark.read.table(names[0])
    roles = _roles(names[0], table, options)
    kinds = {role: of.kind for role, of in roles.items()}
    if dict(table.dtypes).get(ORDER) not in ("int", "bigint"):
        raise DataError(
            f"{names[0]} has no whole-number column {ORDER!r}, and a table has no order of its own: add one that "
            "tells the events of one step apart."
        )
    found = table.select(*(of.value(options).alias(r) for r, of in roles.items()), F.col(ORDER).cast("long"))
    total, orders, least = found.agg(F.count("*"), F.count_distinct(ORDER), F.min(ORDER)).first() or (0,) * 3
    if not total:
        raise DataError(f"no event was found in {names[0]}; check that the table has rows.")
    if orders != total or least < 0:
        raise DataError(f"{names[0]} has an {ORDER!r} that is empty, negative or given twice: number its rows from 0.")
    return _Raw(found, kinds, options, total, 1)


@dataclass(frozen=True)
class _Role:
    """A role of an event in a table: the columns that hold it, with their kinds; none where every row has the same."""

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def kind(self) -> str:
        """whole, date or text."""
        return self.columns[0][1] if len(self.columns) == 1 else "text"

    def value(self, options: ReadOptions) -> Column:
        """The role as whole numbers, as seconds since 1970 for dates, or as trimmed text."""
        from pyspark.sql import functions as F

        if len(self.columns) == 1:
            return _value(*self.columns[0], named=self.name != "time")
        if not self.columns:
            return F.lit(options.relation_is)
        marks = ", ".join(map(_quoted, sorted(options.missing())))
        texts = [f"trim(BOTH {SPACES} FROM CAST({_identifier(column)} AS STRING))" for column, _ in self.columns]
        if self.name != "time" or "%" not in options.time_format:
            texts = [plain_number_sql(text, "$1") for text in texts]
        return F.expr(joined_parts(self.name, [f"CASE WHEN {t} IN ({marks}) THEN NULL ELSE {t} END" for t in texts]))


def _roles(name: str, table: DataFrame, options: ReadOptions) -> dict[str, _Role]:
    """Where a table holds each role."""
    declared, found = dict(table.dtypes), {}
    for role, places in zip(ROLES, Heading(table.columns, options).places(name), strict=True):
        headings = [table.columns[place] for place in places]
        for heading in headings:
            kind = KINDS.get(declared[heading])
            if not kind or (kind == "date" and role != "time"):
                raise DataError(
                    f"{name} has a column {heading!r} of {declared[heading]}; write whole numbers, texts or dates."
                )
        found[role] = _Role(role, tuple((heading, KINDS[declared[heading]]) for heading in headings))
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _width(table: DataFrame, heading: str, kind: str) -> str:
    # smaller whole numbers are read as large ones, so that files may differ in how they keep them
    return "bigint" if kind == "whole" else dict(table.dtypes)[heading]


def _value(heading: str, kind: str, named: bool) -> Column:
    """A column as whole numbers, as seconds since 1970 for dates, or as trimmed text; named: 107.0 is the name 107."""
    from pyspark.sql import functions as F

    column = _identifier(heading)
    if kind == "date":
        # parts of a second are cut towards zero
        return F.expr(f"CAST(CAST(CAST({column} AS TIMESTAMP) AS DECIMAL(20, 6)) AS BIGINT)")
    if kind == "whole":
        return F.expr(f"CAST({column} AS BIGINT)")
    text = f"trim(BOTH {SPACES} FROM {column})"
    return F.expr(plain_number_sql(text, "$1") if named else text)


# ---- numbering -----------------------------------------------------------------------------------------------------


def _timed(spark: SparkSession, raw: _Raw) -> tuple[Clock, DataFrame, list[str]]:
    """The clock, the rows with both parties, a relation and a step instead of a time, and remarks."""
    from pyspark.sql import functions as F

    kind, parts, step = raw.kinds["time"], 0, raw.options.step
    if kind == "whole":
        low, high = raw.rows.where(f"NOT {raw.missing('time')}").agg(F.min("time"), F.max("time")).first() or (
            None,
            None,
        )
        kind, parts = whole_numbers(low or 0, high or 0, raw.options.time_format, step)
    if kind == "text":
        return _timed_by_text(spark, raw)
    kept = raw.rows.where(raw.filled()).where("time >= 0" if kind == "integer" else f"NOT {raw.missing('time')}")
    if parts > 1:
        kept = kept.withColumn("time", F.expr(f"(time - pmod(time, {parts})) div {parts}"))
    found = kept.select("time").mapInArrow(partial(_few_times, stepped=step is not None), "time long").toArrow()
    values = found.column("time").to_numpy()
    if not len(values):
        raise DataError(f"no row has a time that can be used. {UNDERSTOOD}")
    clock = clock_for(values, kind, step)
    timed = kept.withColumn("step", F.expr(f"(time - {clock.origin}) div {clock.unit}")).drop("time")
    said = [epoch_remark(parts) if parts and not raw.options.time_format else ""]
    return clock, timed, [*filter(None, said), *_of_steps(timed, clock, values, step)]


def _of_steps(timed: DataFrame, clock: Clock, times: np.ndarray, step: str | int | None) -> list[str]:
    """Remarks on the steps of the rows; times int64 [n]: the first and the last are among them."""
    from pyspark.sql import functions as F

    ends = int((times.min() - clock.origin) // clock.unit), int((times.max() - clock.origin) // clock.unit)
    said = [week_remark(clock, step)]
    if step is None and shorter_than_day(clock, ends):
        used, events = timed.agg(F.count_distinct("step"), F.count("*")).first() or (0, 0)
        said.append(fine_steps(clock, ends, used, events))
    return list(filter(None, said))


def _few_times(batches: Iterator[pa.RecordBatch], stepped: bool) -> Iterator[pa.RecordBatch]:
    """On a worker: a few times with the same first and last as all of a partition.

    stepped: a step is given, and they have the same weekdays; else the same common divisors.
    """
    import pyarrow as pa

    few = np.empty(0, dtype=np.int64)
    for batch in batches:
        times = np.concatenate([few, batch.column("time").to_numpy()])
        if len(times):
            first = times.min()
            _, weekdays = np.unique(times // DAY % 7, return_index=True)
            others = times[weekdays] if stepped else [first + np.gcd.reduce(times - first)]
            few = np.array([first, *others, times.max()])
    if len(few):
        yield pa.RecordBatch.from_pydict({"time": pa.array(few, pa.int64())})


def _timed_by_text(spark: SparkSession, raw: _Raw) -> tuple[Clock, DataFrame, list[str]]:
    from pyspark.sql import functions as F

    options, missing = raw.options, raw.options.missing()
    named = raw.rows.withColumn("time", F.expr("coalesce(CAST(time AS STRING), '')"))
    used = F.count_if(F.expr(raw.filled())).alias("used")
    rows = named.groupBy("time").agg(F.count("*").alias("n"), used).orderBy("time").collect()
    texts = ["" if row["time"] in missing else str(row["time"]) for row in rows]
    counts = np.array([row["n"] for row in rows], dtype=np.int64)
    times = read_times(texts, counts, form=options.time_format, step=options.step)
    good = [i for i, row in enumerate(rows) if i not in times.faults and row["used"]]
    if not good:
        raise DataError(f"no row has a time that can be used; the first is {texts[0][:40]!r}. {UNDERSTOOD}")
    clock = clock_for(times.values[good], times.kind, options.step)
    steps = (times.values[good] - clock.origin) // clock.unit
    table = spark.createDataFrame(
        [(texts[i], s) for i, s in zip(good, steps.tolist(), strict=True)], "time string, step long"
    )
    timed = named.where(raw.filled()).join(F.broadcast(table), "time").drop("time")
    return clock, timed, [*times.remarks, *_of_steps(timed, clock, times.values[good], options.step)]


def _names(kind: str, timed: DataFrame, roles: Sequence[str]) -> int | list[str]:
    """How many ids there are where whole numbers count things and none is missing; else the names.

    Whole numbers come in their own order, other names in that of first appearance: by step, then by order, the subject
    before the object.
    """
    from pyspark.sql import functions as F

    sides = [
        timed.select(F.col(role).cast("string").alias("name"), "step", F.expr(f"`{ORDER}` * 2 + {i} AS place"))
        for i, role in enumerate(roles)
    ]
    found = (
        reduce(lambda a, b: a.unionByName(b), sides)
        .groupBy("name")
        .agg(F.min(F.struct("step", "place")).alias("first"))
    )
    found = found.persist()
    try:
        digits = F.expr(f"name RLIKE '{DIGITS}'")
        number = F.when(digits, F.col("name").cast("long"))
        count, numbers, last = found.agg(F.count("*"), F.count_if(digits), F.max(number)).first() or (0, 0, 0)
        if not count:
            raise DataError("no row is an event with all four parts; check the names of the columns.")
        if count == numbers and last < 10_000 + 100 * count:
            if last > LAST_ID:
                raise DataError(f"the {kind} id {last} is too large; ids must be below 2^31.")
            used = found.where(number >= 0).orderBy(number)
            if used.count() == last + 1:
                return int(last) + 1
        else:
            used = found.orderBy("first")
        return [str(name) for name in used.select("name").toArrow().column("name").to_pylist()]
    finally:
        found.unpersist()


def _with_ids(spark: SparkSession, timed: DataFrame, role: str, names: int | list[str]) -> DataFrame:
    """The rows with the ids of names in their place."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    if isinstance(names, int):
        return timed
    ids = spark.createDataFrame(pa.table({role: names, "id": np.arange(len(names))}))
    numbered = timed.withColumn(role, F.col(role).cast("string"))
    numbered = numbered.join(F.broadcast(ids) if len(names) <= MANY else ids, role).drop(role)
    return numbered.withColumnRenamed("id", role)
