"""Schemas: the one JSON document that each command prints with --json, and the lines of standard error."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, TypeAdapter

from bridgemem.cli.configured import Setting
from bridgemem.cli.schemas.answers import (
    Explained,
    Forecasted,
    ForecastedFile,
    ForecastedGroup,
    ForecastedPartners,
    ForecastedWhat,
    ForecastedWhether,
    LedgerListed,
    LedgerScored,
    NamesListed,
    OutlookListed,
)
from bridgemem.cli.schemas.base import Document, Failure, Line, Remark
from bridgemem.cli.schemas.data import (
    Aliased,
    DataChecked,
    DataDescribed,
    DataDownloaded,
    DataImported,
    DataListed,
    DataPacked,
    MemoryWritten,
    Mined,
)
from bridgemem.cli.schemas.models import (
    Audited,
    BackbonesListed,
    Calibrated,
    CheckedBackbone,
    Compared,
    Demonstrated,
    Evaluated,
    EvaluatedWhether,
    Fitted,
    Measured,
    MeasuredByTgb,
    NewBackbone,
    Pulled,
    Pushed,
    RankedQueries,
    Remade,
    Reported,
    Stratified,
    Trained,
)
from bridgemem.cli.schemas.stores import (
    FeedIngested,
    Ingested,
    LinkMoved,
    Refreshed,
    RejectedDropped,
    RejectedExported,
    RejectedListed,
    RejectedReplayed,
    Renewed,
    Retracted,
    StoreCompacted,
    StoreCopied,
    StoredListed,
    StoreReduced,
)

__all__ = ["DOCUMENTS", "Document", "Failure", "Line", "Remark", "document"]


class ConfigShown(Document):
    """What a command would start with if it were called without any option."""

    of: Literal["serve", "explore"]
    file: str | None = Field(description="The TOML file that was read.")
    settings: list[Setting]


class Schema(Document):
    """The JSON Schema of a command's document, and of the lines of standard error."""

    document: dict[str, Any]
    stderr: dict[str, Any]


DOCUMENTS: dict[str, Any] = {
    "demo": Demonstrated,
    "train": Trained,
    "fit": Fitted,
    "evaluate": Evaluated | EvaluatedWhether,
    "new-backbone": NewBackbone,
    "calibrate": Calibrated,
    "forecast": Forecasted | ForecastedFile | ForecastedWhat | ForecastedPartners | ForecastedWhether | ForecastedGroup,
    "reproduce": Measured | Remade,
    "outlook": OutlookListed,
    "explain": Explained,
    "names": NamesListed,
    "data list": DataListed,
    "data check": DataChecked,
    "data stats": DataDescribed,
    "data import": DataImported,
    "data aliases": Aliased,
    "data pack": DataPacked,
    "data download": DataDownloaded,
    "ingest": Ingested | FeedIngested,
    "stored": StoredListed,
    "retract": Retracted,
    "refresh": Refreshed | Renewed,
    "rejected": RejectedListed | RejectedExported | RejectedReplayed | RejectedDropped,
    "prune": StoreReduced,
    "erase": StoreReduced,
    "compact": StoreCompacted,
    "backup": StoreCopied,
    "ledger list": LedgerListed,
    "ledger score": LedgerScored,
    "promote": LinkMoved,
    "rollback": LinkMoved,
    "config show": ConfigShown,
    "mine": Mined,
    "memory": MemoryWritten,
    "ablate": Measured,
    "compare": Compared,
    "ranks": RankedQueries,
    "strata": Stratified,
    "headroom": Measured,
    "audit": Audited,
    "check-backbone": CheckedBackbone,
    "leakage": Measured,
    "tgb": MeasuredByTgb,
    "report": Reported,
    "push": Pushed,
    "pull": Pulled,
    "backbones list": BackbonesListed,
    "schema": Schema,
}


def document(command: str) -> TypeAdapter[Any]:
    """What reads and describes the document of a command."""
    return TypeAdapter(DOCUMENTS[command])
