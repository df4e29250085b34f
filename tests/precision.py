"""How floats are compared in tests: equal bits, or close on the scale of the values (docs/concepts/numerics.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

FLOAT64 = 1e-9  # the same computation in double precision, in another order
FLOAT32 = 1e-5  # the same computation in single precision, in another order
TRAINED = 1e-3  # gradients and weights after a few steps in single precision


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def same(found: Any, expected: Any) -> bool:
    """Whether two arrays or tensors have equal shapes, types and bits; NaN equals NaN."""
    a, b = _array(found), _array(expected)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def close(found: Any, expected: Any, within: float = FLOAT32, least: float = 1.0) -> bool:
    """Whether no value is further off than `within` times the scale of the expected ones, which is at least `least`.

    Shapes must be equal, NaN and infinities stand in the same places.
    """
    a, b = (_array(values).astype(np.float64) for values in (found, expected))
    if a.shape != b.shape:
        return False
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    scale = max(least, float(np.abs(b[finite]).max(initial=0.0)))
    return bool((np.abs(a[finite] - b[finite]) <= within * scale).all())
