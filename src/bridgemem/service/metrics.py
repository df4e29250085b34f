"""What the service counts about itself, in the form that Prometheus reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger(__name__)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters of one application; several in one process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "bridgemem_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "bridgemem_request_seconds", "From request to answer.", ("route",), buckets=SECONDS, registry=registry
        )
        self.in_work = Gauge("bridgemem_requests_in_work", "Requests that are being answered.", registry=registry)
        self.accepted = Counter("bridgemem_events_accepted", "Events stored.", registry=registry)
        self.duplicates = Counter("bridgemem_events_duplicate", "Events that were known already.", registry=registry)
        self.late = Counter("bridgemem_events_late", "Events older than the newest known one.", registry=registry)
        self.retracted = Counter("bridgemem_events_retracted", "Events taken back.", registry=registry)
        self.replayed = Counter("bridgemem_batches_replayed", "Batches delivered again.", registry=registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that asks for its value whenever it is read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured:
    """The application, with every answer counted and timed.

    Labels come from the routes, never from what a caller sent, so that nobody can make up new ones.
    """

    def __init__(self, app: App, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begin = time.perf_counter()
        self.metrics.in_work.inc()
        try:
            await self.app(scope, receive, noting)
        finally:
            self.metrics.in_work.dec()
            if 400 <= status < 500:
                # what a caller sent is written out, so that it cannot make lines of its own
                LOG.warning("%s %.200s was refused: %d", ascii(scope["method"])[1:-1], ascii(scope["path"]), status)
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - begin)
