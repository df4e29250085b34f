"""The service that has a store open: found by the note next to the store, and asked in place of the file.

DuckDB lets one process at a time have a file open. While `serve` has a store, commands that need it ask the service.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import BridgeMemError

if TYPE_CHECKING:
    from bridgemem.client import Client
    from bridgemem.events.naming import NewEvent
    from bridgemem.events.readers.text import Reject
    from bridgemem.live.eventstore import EventStore, Receipt, Stored

ONE_BATCH = 10_000  # events that a service takes at once


def _beside(store: Path, ending: str) -> Path:
    return store.with_name(f"{store.name}.{ending}")


@contextmanager
def noted_service(store: Path, host: str, port: int, admin_token_file: Path | None) -> Iterator[str]:
    """Note where a service listens next to its store, and with which admin token, which is given, until it ends.

    Only the user can read the files. Those of a killed service do no harm: they are read only while a process has the
    store open.
    """
    import secrets

    from bridgemem.client import read_token

    note, own = _beside(store, "service.json"), _beside(store, "admin-token")
    token = secrets.token_hex(16) if admin_token_file is None else read_token(admin_token_file)
    if admin_token_file is None:
        _write_private(own, f"{token}\n")
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"
    file = (admin_token_file or own).absolute()
    _write_private(note, json.dumps({"address": address, "token_file": str(file), "process": os.getpid()}) + "\n")
    try:
        yield token
    finally:
        note.unlink(missing_ok=True)
        if admin_token_file is None:
            own.unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def service_of(store: Path) -> Client | None:
    """The service that noted itself next to a store, if its note can be read."""
    from bridgemem.client import Client

    with suppress(OSError, ValueError, KeyError, TypeError, BridgeMemError):
        noted = json.loads(_beside(store, "service.json").read_text(encoding="utf-8"))
        # a copy of a large store takes a while
        return Client(noted["address"], token_file=noted["token_file"], timeout=600, retries=2)
    return None


@contextmanager
def opened_store(path: Path, open_file: Callable[[], EventStore]) -> Iterator[EventStore | RemoteStore]:
    """The store, or the service that has it open; the same methods on both."""
    from bridgemem.live.eventstore import StoreInUseError

    try:
        opened = open_file()
    except StoreInUseError as held:
        yield RemoteStore(path, _client(path, held))
    else:
        with opened:
            yield opened


@contextmanager
def store_to_read(path: Path, duplicates: str | None = None, *, read_only: bool = False) -> Iterator[EventStore]:
    """The store, or a copy that the service that has it open makes for the moment.

    read_only: it stays as it is; without, what is read may be resolved first.
    """
    import tempfile

    from bridgemem.live.eventstore import EventStore, StoreInUseError

    try:
        opened = EventStore(path, create=False, duplicates=duplicates, read_only=read_only)
    except StoreInUseError as held:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".copy-") as aside:
            copy = Path(aside) / path.name
            _client(path, held).backup(copy.resolve())
            with EventStore(copy, create=False, duplicates=duplicates) as opened:
                yield opened
    else:
        with opened:
            yield opened


def resolve_forecasts(opened: EventStore | RemoteStore) -> None:
    """Let what was stored resolve the issued forecasts; a service does so by itself."""
    from bridgemem.live.ledger import Ledger

    if not isinstance(opened, RemoteStore):
        Ledger(opened).resolve()


def _client(path: Path, held: BridgeMemError) -> Client:
    from bridgemem.client import ServiceError

    client = service_of(path)
    if client is None:
        raise held
    try:
        client.get("/v1/limits")
    except ServiceError as problem:
        said = str(problem).rstrip(".")
        raise type(held)(f"{path} is open in another process, which does not answer ({said}); stop that one.") from None
    return client


def keep_rejected(store: EventStore | RemoteStore, source: str, key: str, rejects: Sequence[Reject]) -> None:
    """Put rows of a batch that is not stored yet in quarantine."""
    from bridgemem.live.quarantine import Quarantine

    if isinstance(store, RemoteStore):
        if rejects:
            store.keep_rejected(source, key, rejects)
    elif not store.holds_batch(source, key):
        Quarantine(store).keep(source, key, rejects)


@dataclass
class RemoteStore:
    """An event store through the service that has it open."""

    path: Path
    client: Client

    def append(self, events: Sequence[NewEvent], *, source: str, key: str, offset: str | int | None = None) -> Receipt:
        from bridgemem.errors import DataError
        from bridgemem.live.eventstore import Receipt

        if len(events) > ONE_BATCH:
            raise DataError(
                f"a service has {self.path} open, which takes {ONE_BATCH:,} events at once, and these are "
                f"{len(events):,}; split the file, or stop the service."
            )
        return Receipt(**self.client.add(events, source=source, key=key, offset=offset))

    def retract(self, event_ids: str, reason: str = "") -> list[Stored]:
        before = self.stored_event(event_ids)
        self.client.retract([event_ids], reason=reason)
        return [before]

    def stored(self, source: str | None = None, last: int | None = None) -> list[Stored]:
        from bridgemem.live.eventstore import Stored

        return [Stored(**event) for event in self.client.stored(source, last=min(last or 1000, 1000))]

    def stored_event(self, event_id: str) -> Stored:
        from bridgemem.live.eventstore import Stored

        return Stored(**self.client.stored_event(event_id))

    def keep_rejected(self, source: str, key: str, rejects: Sequence[Reject]) -> None:
        """Put rows of a batch in quarantine."""
        rows = [{**asdict(one), "row": list(one.row)} for one in rejects[:ONE_BATCH]]
        self.client.post("/v1/rejected", {"source": source, "key": key, "rows": rows})

    def sender(self, key: str) -> str | None:
        """The source whose last batch came under a key."""
        return next((one["source"] for one in self.client.sources() if one["last_key"] == key), None)

    def last_offset(self, source: str) -> str | None:
        return next((one["last_offset"] for one in self.client.sources() if one["source"] == source), None)
