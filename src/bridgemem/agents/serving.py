"""Serving the tools: over standard input and output, or over HTTP under the service's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from bridgemem.service.limits import Guard, Limits, Tokens

PATH = "/mcp"


def http_app(server: MCPServer[Any], limits: Limits, token: str | None = None, hosts: Sequence[str] = ()) -> Any:
    """The tools at /mcp: each request answered by one JSON document, with no session between requests.

    token: what callers must send; hosts: the only Host headers that are answered, none for any.
    """
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=limits.body,
        # the guard checks the Host header
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return Guard(app, limits, Tokens(token), hosts)
