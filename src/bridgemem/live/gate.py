"""Gate: many pass at once, or one alone while the others wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many do something at the same time, or one changes what they do it to; a thread passes once at a time."""

    def __init__(self) -> None:
        self._free, self._many, self._alone = threading.Condition(), 0, False

    @contextmanager
    def one_of_many(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._alone)
            self._many += 1
        try:
            yield
        finally:
            with self._free:
                self._many -= 1
                self._free.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._alone)
            self._alone = True
            self._free.wait_for(lambda: not self._many)
        try:
            yield
        finally:
            with self._free:
                self._alone = False
                self._free.notify_all()
