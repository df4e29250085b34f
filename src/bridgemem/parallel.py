"""Parallel: batches that do not depend on each other, several at once on the threads of a CPU; and worker processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import wait
from typing import TypeVar

import torch

MOST_WORKERS = 4  # each has a batch in memory

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(function: Callable[[Item], Made], items: Iterable[Item], *, several: bool = True) -> Iterator[Made]:
    """Map a function over items, with the results in their order.

    Small operations gain little from threads of their own: a batch for each thread keeps all of them busy. Torch
    releases Python's lock while it computes.

    Args:
        function: Called from several threads at once.
        items: Read one ahead of those that are being computed.
        several: False: one after the other, on the thread of the caller.
    """
    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS)
    if not several or workers == 1:
        yield from map(function, items)
        return
    learns = torch.is_grad_enabled()  # which every thread has for itself

    def carried_out(item: Item) -> Made:
        with torch.set_grad_enabled(learns):
            return function(item)

    torch.set_num_threads(threads // workers)
    try:
        with ThreadPoolExecutor(workers) as pool:
            waiting: deque[Future[Made]] = deque()
            for item in items:
                waiting.append(pool.submit(carried_out, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        torch.set_num_threads(threads)


def end_with_parent() -> None:
    """In a worker process: end as soon as the process that started it is gone, however that ended.

    A pool ends its workers when it is shut down, which a killed process does not do; they would wait for work for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # nobody is left to be told, and a computation in another thread would go on
