"""What the service counts about itself, in the form that Prometheus reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from bridgemem.service.logs import begin, log_fields

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger(__name__)
HEADER = b"bridgemem-model"  # of every answer: the version of the model that gave it
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds: a line at debug level
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
        self.duplicates = Counter("bridgemem_events_duplicate", "Events repeated within a step.", registry=registry)
        self.late = Counter("bridgemem_events_late", "Events older than the newest known one.", registry=registry)
        self.retracted = Counter("bridgemem_events_retracted", "Events taken back.", registry=registry)
        self.new_names = Counter("bridgemem_names_new", "Names that were not known yet.", ("kind",), registry=registry)
        self.rejected = Counter("bridgemem_events_rejected", "Events of batches that were refused.", registry=registry)
        self.reloads = Counter("bridgemem_reloads", "Times another run was loaded.", ("outcome",), registry=registry)
        self.model = Gauge("bridgemem_model", "1 for the model that is served.", ("version",), registry=registry)
        self.replayed = Counter("bridgemem_batches_replayed", "Batches delivered again.", registry=registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that asks for its value whenever it is read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def serves(self, version: str) -> None:
        """Name the model that is served now."""
        self.model.clear()
        self.model.labels(version).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured:
    """The application, with every answer counted, timed and logged, and named after the model that gave it.

    Labels come from the routes, never from what a caller sent, so that no request can add new ones. paths: those of the
    routes, for requests that are refused before they get there. version: of the model that is served now.
    """

    def __init__(self, app: App, metrics: Metrics, paths: Collection[str], version: Callable[[], str]) -> None:
        self.app, self.metrics, self.paths, self.version = app, metrics, paths, version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, noted = 500, begin()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                noted.fields.setdefault("model_version", self.version())
                header = (HEADER, noted.fields["model_version"].encode("ascii", "backslashreplace"))
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        start = time.perf_counter()
        self.metrics.in_work.inc()
        try:
            await self.app(scope, receive, noting)
        finally:
            taken = time.perf_counter() - start
            self.metrics.in_work.dec()
            route = getattr(scope.get("route"), "path", None)
            route = route or (scope["path"] if scope["path"] in self.paths else "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(taken)
            noted.fields |= {
                "method": method,
                "route": route,
                "path": scope["path"] if route == "other" else None,
                "status": status,
                "milliseconds": round(taken * 1000, 1),
                "client": (scope.get("client") or (None,))[0],
            }
            if status == 500:  # answered further out, where nothing can be noted
                noted.fields.setdefault("reason", "internal")
            log_fields(LOG, _level(route, status), "request", noted)


def _level(route: str, status: int) -> int:
    if status >= 400:
        return logging.ERROR if status >= 500 else logging.WARNING
    return logging.DEBUG if route in PROBES else logging.INFO
