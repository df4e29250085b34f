"""The HTTP server: no client may keep it waiting for long, and none may hold more than its share of connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bridgemem.service.limits import Limits, refusal

if TYPE_CHECKING:
    from fastapi import FastAPI

KEEP_ALIVE_SECONDS = 5
# accepted in one turn of the event loop, before any of them is counted: together with the most connections these stay
# below the 1,024 open files that most systems allow
BACKLOG = 128
LEAST_READ = 1 << 16  # bytes of a long answer that a client reads within the timeout, or it is given up
MOST_HEADERS = 1 << 16  # bytes of a request's line and headers
NO_HTTP = "the request is not valid HTTP/1.1; send it as /openapi.json describes it."
TOO_LONG = f"the line and headers of the request are longer than {MOST_HEADERS:,} bytes; send fewer."
LATE = "the request's headers did not arrive in time; send it again."


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """The application on a server that keeps the limits on connections."""

    class Connection(PatientConnection):
        pass

    Connection.limits = limits
    config = uvicorn.Config(
        app,
        # by name: the server would otherwise take whatever other parsers happen to be installed, without the limits
        http=Connection,
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_config=None,  # as `logs.set_up_logs` has it, where it was called
        access_log=False,
        server_header=False,
    )
    return uvicorn.Server(config)


class PatientConnection(HttpToolsProtocol):
    """A connection with a deadline whenever it is the client's turn.

    uvicorn has a deadline for a connection where nothing arrives between two requests. It has none for the headers of a
    request, for the rest of a body that was answered before it was whole, or for a client that does not read. Here one
    timer runs from the moment the server waits for a request until its headers are whole, and while an answer cannot be
    sent on. What arrives in pieces does not restart it. The body's own deadline is the guard's, which answers 408.
    Nor has it a limit on the length of headers, which are refused here beyond MOST_HEADERS.
    """

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self.given_up = False
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        # whether part of a request's headers is here, and how much of them: as it came, and as it was read
        self._begun, self._length, self._headers = False, 0, 0
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._begun:
            self._length += len(data)
            if self._length > 2 * MOST_HEADERS and not self.transport.is_closing():  # one header without an end
                self._refuse(431, TOO_LONG)
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun, self._length, self._headers = True, 0, 0

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._begun = False
        super().on_headers_complete()

    def _count(self, *parts: bytes) -> None:
        self._headers += sum(map(len, parts))
        if self._headers > MOST_HEADERS:
            raise ValueError(TOO_LONG)  # the parser stops there, and the request is refused

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser did not take, in the shape of every refusal."""
        if self._headers > MOST_HEADERS:
            self._refuse(431, TOO_LONG)
        else:
            self._refuse(400, NO_HTTP)

    def _refuse(self, status: int, error: str) -> None:
        said = refusal(status, error, headers={"Connection": "close"})
        lines = (b"%s: %s\r\n" % header for header in said.raw_headers)
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", bytes(said.body)]))
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    @property
    def idle(self) -> bool:
        """Whether the server waits for the headers of a request, the first or the next."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def receiving(self) -> bool:
        """Whether the server waits for the rest of a body."""
        return not self.idle and self.cycle.more_body

    def _watch(self) -> None:
        """Start the timer where it is the client's turn and it does not run, stop it where it is not."""
        if self.idle or self.flow.write_paused:
            self._start()
        else:
            self._stop()

    def _start(self) -> None:
        if self._timer is None:
            self.since = self.loop.time()
            self._unsent = self.transport.get_write_buffer_size()
            self._timer = self.loop.call_later(self.limits.timeout, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent <= self._unsent - LEAST_READ:
            self._start()  # a long answer, read slowly but steadily
        elif unsent or self.transport.is_closing():
            self.give_up()
        else:
            self._tell_late()
            self.transport.close()
            self._start()  # to close needs all to be sent

    def _tell_late(self) -> None:
        """Say so to a client that sent half of its headers; to one that sent nothing there is nothing to answer."""
        if not self._begun:
            return
        self._refuse(408, LATE)

    def give_up(self) -> None:
        """Close at once, whatever is still to be sent."""
        self.given_up = True
        self.transport.abort()

    def _make_room(self) -> None:
        """Where there are too many connections, the one that has waited longest gives way to the new one.

        A client that opens many and sends nothing loses them first; other clients are not locked out.
        """
        every = [c for c in self.connections if isinstance(c, PatientConnection) and not c.given_up]
        counts = Counter(c.address for c in every)
        if counts[self.address] > self.limits.per_client:
            crowd = self.address
        elif len(every) > self.limits.connections:
            crowd = max(counts, key=counts.__getitem__)
        else:
            return
        theirs = [c for c in every if c.address == crowd and c is not self]
        waiting = [c for c in theirs if c.idle] or [c for c in theirs if c.receiving] or [self]
        min(waiting, key=lambda c: c.since).give_up()

    @property
    def address(self) -> str:
        """The client's address without its port; the same for all clients behind one proxy."""
        return self.client[0] if self.client else ""
