"""Attention forward and backward on a CPU: windows and learned biases, beside SDPA with a dense mask, x-transformers and HF T5.
One thread, CPU time, medians of rounds in which the cases take turns.

python benchmarks/attention.py --out benchmarks/results/attention.json
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.term import Scoring

BATCH, HEADS, WIDTH, WINDOW = 2, 6, 64, 256
Case = Callable[[int, torch.dtype], tuple[list[Tensor], Callable[[], Tensor]]]


def inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k and v, which require gradients."""
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3)]


def isoflop(change: dict[str, Any], kernel: str | None = None) -> Case:
    """One attention evaluation of an architecture with this change, terms and all."""

    def make(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Callable[[], Tensor]]:
        attention = {"heads": HEADS, **change.get("attention", {})}
        plain = {"width": HEADS * WIDTH, "depth": 1, "position": "none"}
        architecture = Architecture(**{**plain, **change, "attention": attention})
        scoring: Scoring = build(architecture).blocks[0].attention.scoring
        own = [p for term in scoring.terms for p in term.parameters()]
        for parameter in own:
            nn.init.normal_(parameter, std=0.1)
        q, k, v = inputs(length, dtype)
        positions = torch.arange(length)[None]
        places = Places(positions, positions, consecutive=True)
        return [q, k, v, *own], lambda: Dense(places, kernel)(q, k, v, scoring)

    return make


def sdpa_causal(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Callable[[], Tensor]]:
    q, k, v = inputs(length, dtype)
    return [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sdpa_window(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """The window as a dense boolean mask, made once outside of the clock."""
    q, k, v = inputs(length, dtype)
    offset = torch.arange(length)[:, None] - torch.arange(length)[None]
    mask = (offset >= 0) & (offset < WINDOW)
    return [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sdpa_t5(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """Hugging Face's T5 bias with a causal mask, given to SDPA as one dense mask, as its models do."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=HEADS * WIDTH, d_kv=WIDTH, num_heads=HEADS, is_decoder=True)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    q, k, v = inputs(length, dtype)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def run() -> Tensor:
        bias = layer.compute_bias(length, length).masked_fill(future, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(dtype))

    return [q, k, v, layer.relative_attention_bias.weight], run


def x_transformers_window(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """Its sliding window is the package local-attention's, or a mask in `Attend`; here the mask, which is what it has without."""
    from x_transformers.attend import Attend

    attend = Attend(causal=True, flash=True, dropout=0.0)
    q, k, v = inputs(length, dtype)
    offset = torch.arange(length)[:, None] - torch.arange(length)[None]
    mask = ((offset >= 0) & (offset < WINDOW))[None, None]
    return [q, k, v], lambda: attend(q, k, v, mask=mask)[0]


CASES: dict[str, Case] = {
    "full: sdpa": sdpa_causal,
    "full: isoflop": isoflop({}),
    "window: isoflop": isoflop({"attention": {"window": WINDOW}}),
    "window: sdpa, dense mask": sdpa_window,
    "window: x-transformers": x_transformers_window,
    "t5: isoflop": isoflop({"position": "t5"}),
    "t5: hf bias, sdpa": sdpa_t5,
    "relative keys: isoflop": isoflop({"position": {"kind": "relative", "value": False}}),
    "relative keys and values: isoflop": isoflop({"position": "relative"}),
    "gaussian: isoflop": isoflop(
        {"attention": {"priors": [{"kind": "penalty", "measure": {"kind": "gaussian", "sigma_is": "per_head"}}]}}
    ),
}
"""What is timed, each relative to the first."""


def once(case: Case, length: int, dtype: torch.dtype) -> float:
    """CPU seconds of one forward and backward."""
    leaves, run = case(length, dtype)
    gc.collect()
    start = time.process_time()
    out = run()
    torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
    return time.process_time() - start


def times(names: list[str], length: int, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Median seconds of each case; they take turns, after one round that does not count."""
    rows: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            seconds = once(CASES[name], length, dtype)
            if number:
                rows[name].append(seconds)
    return {name: statistics.median(row) for name, row in rows.items()}


def peak_megabytes(name: str, length: int, dtype: str) -> float:
    """Peak memory of a process that runs one case once, above that of the process before."""
    command = [sys.executable, __file__, "--peak", name, "--lengths", str(length), "--dtype", dtype]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def report_peak(name: str, length: int, dtype: torch.dtype) -> None:
    once(CASES[name], 130, dtype)  # what loads with the first call
    leaves, run = CASES[name](length, dtype)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = peak_kilobytes()
    out = run()
    torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
    print((peak_kilobytes() - before) / 1024)


def peak_kilobytes() -> int:
    """The largest resident size so far; Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # so that CPU time is time, whatever else the machine does
    dtype = getattr(torch, options.dtype)
    if options.peak:
        report_peak(options.peak, options.lengths[0], dtype)
        return
    results: dict[str, Any] = {"dtype": options.dtype, "threads": torch.get_num_threads(), "torch": torch.__version__}
    window_seconds = {}
    for length in options.lengths:
        names = [name for name in CASES if length <= 4096 or (name.endswith("isoflop") and name.startswith("window"))]
        if length > 2048:
            names = [name for name in names if name.startswith(("full", "window"))]
        found = times(names, length, dtype, options.rounds)
        window_seconds[length] = found["window: isoflop"]
        base = found.get("full: sdpa")
        results[f"T={length}"] = {
            name: {"seconds": seconds, **({"over_full_sdpa": seconds / base} if base else {})}
            for name, seconds in found.items()
        }
        print(json.dumps({f"T={length}": results[f"T={length}"]}), file=sys.stderr)
    logs = [(math.log(length), math.log(seconds)) for length, seconds in window_seconds.items()]
    if len(logs) > 1:
        results["window_exponent_of_time_in_T"] = statistics.linear_regression(*zip(*logs, strict=True)).slope
    results["peak_megabytes_T=2048"] = {name: peak_megabytes(name, 2048, options.dtype) for name in CASES}
    print(json.dumps(results, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
