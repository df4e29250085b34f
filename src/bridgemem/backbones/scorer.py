"""Scorer: what scores queries from a past; a backbone is one that is trained and saved too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bridgemem.backbones.base import Scores
    from bridgemem.events.queries import Queries
    from bridgemem.memory.past import Past


class Scorer(Protocol):
    """Log scores of every entity for each query, from facts strictly before its step."""

    @property
    def name(self) -> str: ...

    @property
    def own_uncertainty(self) -> bool:
        """Whether its uncertainty is its own; otherwise it is the mass on seen candidates."""
        ...

    def score(self, queries: Queries, past: Past) -> Scores:
        """Score every entity as the answer of each query."""
        ...
