"""`python -m benchmarks.gpu`: the same table on a GPU; it needs numpy, torch and safetensors alone."""

from __future__ import annotations

import sys

import torch

from benchmarks.__main__ import main
from benchmarks.harness import complain

if __name__ == "__main__":
    if not torch.cuda.is_available():
        complain("benchmarks: there is no GPU here that torch can use; run `python -m benchmarks` for the CPU.")
        sys.exit(2)
    sys.exit(main(device="cuda"))
