"""Together: what several threads ask for at the same time is done at once, on one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

GLANCE = 0.001  # seconds between two looks at what waits

Item = TypeVar("Item")
Made = TypeVar("Made")


class Together(Generic[Item, Made]):
    """Calls from several threads that become one call of a function, on a thread of its own.

    What comes alone is done at once, and what comes meanwhile is the next batch. One thread, since what torch and the
    allocator keep for each thread would else be kept for all that ever ask.

    work: from items what becomes of each, in their order; an exception among them is raised to its own caller, one that
    the work raises to all of them. most: items that are done at once. patience: where several came together lately, the
    next batch waits for as many, unless none comes within that many seconds. Callers who are answered together come
    back one by one, and a batch of all of them costs far less than several.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Made | Exception]],
        name: str,
        most: int = 64,
        *,
        patience: float = 0.0,
    ) -> None:
        self._work, self._most, self._patience = work, most, patience
        self._sizes = (0, 0)  # of the last two batches
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(1, name)
        self._waiting: list[tuple[Item, Future[Made]]] = []

    def __call__(self, item: Item) -> Made:
        """What becomes of an item; blocks until it is done."""
        return self.submit(item).result()

    def submit(self, item: Item) -> Future[Made]:
        """What becomes of an item, some time."""
        future: Future[Made] = Future()
        with self._lock:
            self._waiting.append((item, future))
        self._pool.submit(self._serve)
        return future

    def _gather(self) -> None:
        """Wait for as many items as came together lately, as long as they come."""
        wanted, size, last = min(max(self._sizes), self._most), 0, time.monotonic()
        while self._patience and 0 < len(self._waiting) < wanted and time.monotonic() - last < self._patience:
            if len(self._waiting) > size:
                size, last = len(self._waiting), time.monotonic()
            time.sleep(GLANCE)

    def _serve(self) -> None:
        """Do the work for all that wait; where an earlier turn did it already, there is none."""
        self._gather()
        with self._lock:
            taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        # one whose caller has gone is left out
        taken = [(item, future) for item, future in taken if future.set_running_or_notify_cancel()]
        if not taken:
            return
        self._sizes = self._sizes[1], len(taken)
        try:
            outcomes = list(self._work([item for item, _ in taken]))
            assert len(outcomes) == len(taken)
        except Exception as problem:
            outcomes = [problem] * len(taken)
        for (_, future), outcome in zip(taken, outcomes, strict=True):
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
