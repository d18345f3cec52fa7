"""Forward and backward of RMSNorm on a CPU: ours, torch's, and LayerNorm for scale. One thread, CPU time, medians.

python benchmarks/rms_norm.py --out benchmarks/results/rms_norm.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.model.norm import LeanRMSNorm

SHAPES = {"8x512x384": (8, 512, 384), "16x64x64": (16, 64, 64)}
EPS = 1e-6
WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "isoflop": lambda x, gain: LeanRMSNorm.apply(x, gain, EPS),
    "torch_rms_norm": lambda x, gain: F.rms_norm(x, gain.shape, gain, EPS),
    "torch_layer_norm": lambda x, gain: F.layer_norm(x, gain.shape, gain, None, EPS),
}


def measure(shape: tuple[int, ...], dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Milliseconds by way; the ways take turns."""
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    gain = torch.ones(shape[-1], dtype=dtype, requires_grad=True)
    dy = torch.randn(shape, dtype=dtype)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, norm in WAYS.items():
            start = time.process_time()
            torch.autograd.grad(norm(x, gain), (x, gain), dy)
            times[way].append(1e3 * (time.process_time() - start))
    return {way: statistics.median(row) for way, row in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name, shape in SHAPES.items():
        for dtype in (torch.float32, torch.bfloat16):
            row = measure(shape, dtype, options.rounds)
            results[f"{name} {str(dtype).removeprefix('torch.')}"] = {
                "milliseconds": row,
                "torch_over_isoflop": row["torch_rms_norm"] / row["isoflop"],
            }
    print(json.dumps(results, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
