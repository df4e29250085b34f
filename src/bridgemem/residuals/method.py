"""Method: what ranks the candidates of a run, and the columns of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from bridgemem.storage.tables import RANK


@dataclass(frozen=True)
class Method:
    """The backbone alone, or a residual as selected under a filter.

    name: "backbone", "bridgemem" or "learned". selected_by: the filter, None for the backbone.
    """

    name: str
    selected_by: str | None = None

    def __str__(self) -> str:
        return self.name if self.selected_by is None else f"{self.name}.{self.selected_by}"

    def column(self, filter_name: str) -> str:
        """The column of its ranks under a filter: rank_time.backbone, rank_time.bridgemem.static."""
        return f"{RANK}{filter_name}.{self}"


BACKBONE = Method("backbone")
