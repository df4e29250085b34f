"""Quick: queries that are asked often, answered without the framework wherever nothing about them is unusual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from bridgemem.errors import BridgeMemError
from bridgemem.service.limits import told
from bridgemem.service.metrics import App, Receive, Scope, Send

JSON = b"application/json"


class Quick:
    """The application, with some routes answered in front of it: a third less work for each request.

    What cannot be answered so, a body that does not validate, an unknown name, another method, goes on to the
    application, which says why. So a refusal has one home, and the document of the routes is the application's.

    queries: by path, what the body of a POST is. answer: what is sent back for one, which is not checked again.
    """

    def __init__(
        self, app: App, queries: Mapping[str, type[BaseModel]], answer: Callable[[Any], Awaitable[BaseModel]]
    ) -> None:
        self.app, self.queries, self.answer = app, queries, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = self.queries.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        if kind is None or not _is_json(scope):
            await self.app(scope, receive, send)
            return
        # the guard in front of this has gathered the whole body
        body = (await receive()).get("body", b"")
        try:
            found = await self.answer(kind.model_validate_json(body))
        except (ValidationError, BridgeMemError):
            await self.app(scope, told(body, receive), send)
            return
        text = found.model_dump_json().encode()
        headers = [(b"content-type", JSON), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


def _is_json(scope: Scope) -> bool:
    sent = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return bool(sent.partition(b";")[0].strip().lower() == JSON)
