"""Counters that cannot flake: operator calls and bytes of torch, passes and elements of numpy."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorCount(TorchDispatchMode):
    """Calls of torch operators that compute something, by name, and the bytes that they wrote; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = [r.alias_info for r in func._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in aliases):
            self.calls[str(func)] += 1
            made = result if isinstance(result, tuple | list) else (result,)
            self.bytes += sum(x.nbytes for x in made if isinstance(x, torch.Tensor))
        return result


class Passes:
    """How often arrays were gone through, and how many elements were written doing so."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.elements = 0

    def note(self, name: str, result: Any) -> None:
        self.calls[name] += 1
        self.elements += np.size(result)

    def of(self, array: np.ndarray) -> CountingArray:
        own = np.asarray(array).view(CountingArray)
        own.passes = self
        return own


class CountingArray(np.ndarray):
    """An array whose arithmetic and gathers are counted, and those of whatever comes out of them."""

    passes: Passes | None

    def __array_finalize__(self, source: Any) -> None:
        self.passes = getattr(source, "passes", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        bare = [np.asarray(x) if isinstance(x, CountingArray) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(x) for x in out)
        passes = next(x.passes for x in (*inputs, *(out or ())) if isinstance(x, CountingArray))
        result = getattr(ufunc, method)(*bare, **options)
        assert passes is not None
        passes.note(ufunc.__name__, result)
        return passes.of(result)

    def __getitem__(self, key: Any) -> Any:
        bare_key = np.asarray(key) if isinstance(key, CountingArray) else key
        result = np.asarray(self)[bare_key]
        if self.passes is None:
            return result
        if isinstance(bare_key, np.ndarray):
            self.passes.note("gather", result)
        return self.passes.of(result)
