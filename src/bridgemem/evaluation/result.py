"""Evaluation: what a model made of a split, as records that show themselves as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, overload

from bridgemem.errors import NotFoundError
from bridgemem.evaluation.comparison import evaluation_table, label
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table, figure
from bridgemem.evaluation.what import WHAT, what_table
from bridgemem.showing import as_frame


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model on a split, one record for each method and filter; prints as a table.

    Attributes:
        records: All records, as `--records` writes them.

    Example:
        >>> evaluation[0].split, 0 < evaluation.mrr() < 1
        ('valid', True)
    """

    records: tuple[Record, ...]

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Evaluation: ...
    def __getitem__(self, place: int | slice) -> Record | Evaluation:
        return Evaluation(self.records[place]) if isinstance(place, slice) else self.records[place]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def mrr(self, method: str = "bridgemem", filter_name: str = "time") -> float:
        """Get the MRR of a method, with the residual as selected under the same filter.

        Args:
            method: "backbone", "bridgemem" or "learned".
            filter_name: "raw", "static" or "time".

        Returns:
            The mean reciprocal rank.

        Raises:
            NotFoundError: It was not measured.

        Example:
            >>> evaluation.mrr("bridgemem") >= evaluation.mrr("backbone") > 0
            True
        """
        for r in self.records:
            own = r.backbone == self.records[0].backbone  # and no row that the model is compared with
            if own and (r.method, r.filter) == (method, filter_name) and r.as_chosen:
                return r.mrr
        raise NotFoundError(
            f"no figure of {method!r} under the filter {filter_name!r} was measured; `records` holds all that were."
        )

    def table(self) -> Table:
        """Make the table that is printed: one row per method under the time-aware filter.

        Returns:
            The table, with the gain of the model over each row; `records` has the other filters.

        Example:
            >>> evaluation.table().header[:2]
            ['method', 'MRR']
        """
        if not len(self):
            return Table(self._title(), [], [])
        asks_what = self.records[0].method.startswith(WHAT)
        return what_table(self.records) if asks_what else evaluation_table(self.records)

    def to_frame(self) -> Any:
        """Make a data frame of all records.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> set(evaluation.to_frame()["filter"]) == {"raw", "static", "time"}
            True
        """
        columns: dict[str, list[Any]] = {}
        for record in self.records:
            for name, value in asdict(record).items():
                columns.setdefault(name, []).append(value)
        return as_frame(columns)

    def _title(self) -> str:
        if not self.records:
            return "no records"
        first = self.records[0]
        return f"{first.dataset}, {first.split}, {first.queries:,} queries"

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        chosen = [r for r in self.records if r.as_chosen and r.filter == "time"]
        figures = ", ".join(f"{label(r)} {figure(r.mrr)}" for r in chosen)
        return f"Evaluation({self._title()}{f'; time-aware MRR: {figures}' if figures else ''})"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
