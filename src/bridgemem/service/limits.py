"""Limits: tokens, hosts, the size of bodies, and the number of concurrent requests."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fastapi.responses import JSONResponse

from bridgemem.config import Count, Declared, Positive
from bridgemem.service.docs_page import PATHS as DOCS
from bridgemem.service.logs import note, note_names
from bridgemem.service.metrics import App, Message, Receive, Scope, Send

HEALTH = frozenset({"/healthz", "/readyz"})
OPEN = HEALTH | DOCS  # answered without the token
RETRY_SECONDS = 1
# why a request was refused, in a word for the log; where an error has a code of its own, that is the word
REASONS = {
    400: "http",
    401: "token",
    404: "address",
    409: "refused",
    405: "method",
    408: "timeout",
    413: "too_large",
    421: "host",
    422: "invalid",
    429: "crowded",
    431: "too_large",
    500: "internal",
    503: "not_ready",
}
SMALL_BODY = 1 << 16  # bytes; a body up to this size is gathered however many large ones wait for their rest


@dataclass(frozen=True)
class Limits(Declared):
    """What clients may take of the service.

    body: bytes of a request; concurrent: requests in work at once; timeout: seconds for the headers of a request to
    arrive, again for its body, and for a client to read on where an answer is long; connections: open at once, in all
    and per_client, which is an address.
    """

    body: Count = 4 << 20
    concurrent: Count = 64
    timeout: Positive = 15.0
    connections: Count = 512
    per_client: Count = 128


def refusal(
    status: int,
    error: str,
    suggestions: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> JSONResponse:
    """Every error of the service has this one shape; reason: a word for the log."""
    note(reason=reason or REASONS[status])
    note_names(error=error)
    content = {"error": _sendable(error), "suggestions": [_sendable(name) for name in suggestions]}
    return JSONResponse(content, status, dict(headers or {}))


def _sendable(text: str) -> str:
    """The text as UTF-8 knows it; half a surrogate pair, which JSON can hold, is written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def retry_later(status: int, error: str, reason: str | None = None) -> JSONResponse:
    return refusal(status, error, headers={"Retry-After": str(RETRY_SECONDS)}, reason=reason)


@dataclass(frozen=True)
class Tokens:
    """client: the token of clients; None: none is needed. admin: the token of the operator; None: no operator."""

    client: str | None = None
    admin: str | None = None

    def admit(self, given: bytes | None, admin: bool) -> bool:
        """Whether a request with this token may pass; the admin token opens every route."""
        if not admin and self.client is None:
            return True
        wanted = (self.admin,) if admin else (self.admin, self.client)
        return given is not None and any(
            token is not None and hmac.compare_digest(given, token.encode()) for token in wanted
        )


class TooLargeError(Exception):
    """A body is longer than the limit."""


class HungUpError(Exception):
    """The caller hung up before its body was whole."""


class CrowdedError(Exception):
    """The bodies that wait for their rest fill the memory that they may take together."""


class Guard:
    """The application under its limits. Health is open to anyone; all else needs the token, if there is one.

    admin: the paths that need the admin token.

    hosts: the only values of the Host header that are answered, or none for any. A page in a browser can make any name
    of its own point to this machine, but cannot send another Host than that name.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        tokens: Tokens | None = None,
        hosts: Sequence[str] = (),
        *,
        admin: Collection[str] = (),
    ) -> None:
        self.app, self.limits, self.hosts, self.admin = app, limits, frozenset(hosts), frozenset(admin)
        self.tokens = tokens or Tokens()
        self._in_work, self._gathered = 0, 0  # requests, and bytes of large bodies that are not whole yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        refused = self._refused(scope["path"], headers)
        if refused is not None:
            await refused(scope, receive, send)
        elif scope["path"] in HEALTH:
            await self.app(scope, receive, send)
        else:
            await self._let_in(scope, headers, receive, send)

    def _refused(self, path: str, headers: Mapping[str, bytes]) -> JSONResponse | None:
        if self.hosts and _host(headers.get("host", b"")) not in self.hosts:
            return refusal(421, f"this service answers to {' or '.join(sorted(self.hosts))} alone.")
        scheme, _, given = headers.get("authorization", b"").partition(b" ")
        token = given.strip() if scheme.lower() == b"bearer" else None
        admin = path in self.admin
        if self.tokens.admit(token, admin) or path in OPEN:
            return None
        which = "admin token, which only those who run it have," if admin else "token"
        wanted = {"WWW-Authenticate": "Bearer"}
        return refusal(401, f"send the service's {which} as `Authorization: Bearer TOKEN`.", headers=wanted)

    async def _let_in(self, scope: Scope, headers: Mapping[str, bytes], receive: Receive, send: Send) -> None:
        """Gather the body, and only then take one of the places for requests in work: slow clients hold none."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                body = await self._body(headers, receive)
        except TooLargeError:
            error = f"the request is longer than {self.limits.body:,} bytes; send it in parts."
            await refusal(413, error)(scope, receive, send)
        except TimeoutError:
            error = "the request did not arrive in time; send it again."
            await refusal(408, error, headers={"Connection": "close"})(scope, receive, send)
        except CrowdedError:
            await _crowded(scope, receive, send)
        except HungUpError:
            return
        else:
            await self._work(scope, told(body, receive), send)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._in_work >= self.limits.concurrent:
            await _crowded(scope, receive, send)
            return
        self._in_work += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._in_work -= 1

    async def _body(self, headers: Mapping[str, bytes], receive: Receive) -> bytes:
        """The whole body; its length is counted, whatever the caller says about it."""
        said = headers.get("content-length", b"0")
        if said.isdigit() and int(said[:20]) > self.limits.body:
            raise TooLargeError
        parts, size, more, held = [], 0, True, 0
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HungUpError
                part = message.get("body", b"")
                parts.append(part)
                size, more = size + len(part), message.get("more_body", False)
                if size > self.limits.body:
                    raise TooLargeError
                if size > SMALL_BODY:
                    self._gathered, held = self._gathered + size - held, size
                    if self._gathered > self.limits.body * self.limits.concurrent:
                        raise CrowdedError
            return b"".join(parts)
        finally:
            self._gathered -= held


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    await retry_later(429, "too many requests are in work at once; try again in a moment.")(scope, receive, send)


def told(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, told again to the application."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def _host(header: bytes) -> str:
    """The Host header without its port."""
    host = header.decode("latin-1").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
