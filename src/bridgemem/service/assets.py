"""Files of the pages that the service shows in a browser: sent with their type, once, and under a strict policy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fastapi import Response

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# libraries write the style of what they draw into the page; scripts come from here alone, and none is written inline
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SAFE = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
DAY = 86_400


@dataclass(frozen=True)
class Asset:
    """A file that never changes while the program runs."""

    content: bytes
    kind: str
    tag: str
    kept: str

    @classmethod
    def of(cls, name: str, content: bytes, library: bool = False) -> Asset:
        """A file by its name. A library changes with its package alone, so browsers need not ask for it again."""
        kind = KINDS[name.rpartition(".")[2]]
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        return cls(content, f"{kind}; charset=utf-8", tag, f"max-age={DAY}" if library else "no-cache")

    def sent(self, known: str) -> Response:
        """The file, or nothing where the browser has it already; known: the tag that it sent."""
        headers = {**SAFE, "ETag": self.tag, "Cache-Control": self.kept}
        if self.tag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.kind, headers=headers)
