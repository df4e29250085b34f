"""A service that a thread of the test's own process runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bridgemem.cli.serve import listen
from bridgemem.service.connections import make_server
from bridgemem.service.limits import Limits


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an application that a thread of this process serves."""
    with listen("127.0.0.1", 0) as place:
        server = make_server(app, Limits())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
