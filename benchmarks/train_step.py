"""Training steps per second and peak memory, beside HF Llama, x-transformers and torch's own encoder.

Every contender has the same shape, data, number format and optimizer (fused AdamW) and lives in a process of its own.
Rounds are interleaved, so that all meet the same state of the machine, and the figure is the ratio of medians; absolute
rates of a shared machine mean little. Memory is the growth of the resident set from before the model was built to its
peak. In bf16 the peers run under autocast with fp32 weights, the usual way to the same optimizer state as ours: bf16
compute with fp32 master weights.

    python benchmarks/train_step.py --dtype fp32 bf16 --rounds 6 --out benchmarks/results/train_step.json
    python benchmarks/train_step.py --compile ...
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB, LENGTH, WIDTH, DEPTH, HEADS, HIDDEN = 8192, 512, 384, 6, 6, 1024
CONTENDERS = ("isoflop", "hf_llama", "x_transformers", "torch_encoder")
OURS = "isoflop"


# -------------------------------------------------------------------------------------------------- contenders


def isoflop_step(dtype: str, compiled: bool) -> Callable[[Any], float]:
    from isoflop.data import Batch
    from isoflop.model import Architecture, build, parameter_roles
    from isoflop.train.optim import AdamW
    from isoflop.train.precision import PRECISIONS
    from isoflop.train.step import optimise

    architecture = Architecture(
        vocab=VOCAB,
        width=WIDTH,
        depth=DEPTH,
        norm="rms",
        attention={"heads": HEADS},
        ffn={"kind": "glu", "hidden": HIDDEN},
        tie_head=False,
    )
    model = build(architecture)
    masters = PRECISIONS[dtype](model)
    if compiled:
        for block in model.blocks:
            block.compile()
    optimizer = AdamW().build(masters.weights, parameter_roles(model))

    def step(tokens: Any) -> float:
        batch = Batch(tokens_BT=tokens[:, :-1], targets_BT=tokens[:, 1:], positions_BT=None, documents_BT=None)
        measured = optimise(model, masters, optimizer, batch, rate=3e-4, clip=1.0)
        assert measured is not None
        return float(measured.loss)

    return step


def peer_step(model: Any, logits: Callable[[Any], Any], dtype: str, compiled: bool) -> Callable[[Any], float]:
    """The step a user of the peer writes: autocast for bf16, cross-entropy on the logits, clipping, fused AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(logits) if compiled else logits

    def step(tokens: Any) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            out = forward(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(out.float().reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def hf_llama_step(dtype: str, compiled: bool) -> Callable[[Any], float]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = LlamaForCausalLM(config).train()
    return peer_step(model, lambda tokens: model(tokens, use_cache=False).logits, dtype, compiled)


def x_transformers_step(dtype: str, compiled: bool) -> Callable[[Any], float]:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        attn_dim_head=WIDTH // HEADS,
        attn_flash=True,
        rotary_pos_emb=True,
        use_rmsnorm=True,
        ff_swish=True,
        ff_glu=True,
        ff_no_bias=True,
        ff_mult=HIDDEN / WIDTH,
    )
    model = TransformerWrapper(num_tokens=VOCAB, max_seq_len=LENGTH, attn_layers=layers, use_abs_pos_emb=False).train()
    return peer_step(model, model, dtype, compiled)


def torch_encoder_step(dtype: str, compiled: bool) -> Callable[[Any], float]:
    """Pre-norm LayerNorm and GELU of 4 width: the nearest thing torch offers, with the same number of parameters."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens) + self.place.weight
            return self.head(self.layers(x, mask=self.mask, is_causal=True))

    model = Model().train()
    torch.nn.init.normal_(model.embed.weight, std=0.02)
    return peer_step(model, model, dtype, compiled)


STEPS = {
    "isoflop": isoflop_step,
    "hf_llama": hf_llama_step,
    "x_transformers": x_transformers_step,
    "torch_encoder": torch_encoder_step,
}


# -------------------------------------------------------------------------------------------------- processes


def memory(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def contender(name: str, dtype: str, compiled: bool, threads: int, batch: int) -> None:
    """A contender's process: told how many steps to run, answers with their times."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    before = memory("VmRSS")
    # A contender's own imports count as memory of nobody.
    step = STEPS[name](dtype, compiled)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (batch, LENGTH + 1), generator=generator)
    for line in sys.stdin:
        times, loss = [], float("nan")
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step(tokens)
            times.append(time.perf_counter() - start)
        print(json.dumps({"times": times, "loss": loss, "memory": memory("VmHWM") - before}), flush=True)


class Process:
    """The parent's end of a contender."""

    def __init__(self, name: str, dtype: str, compiled: bool, threads: int, batch: int) -> None:
        command = [sys.executable, __file__, "--contender", name, "--dtype", dtype]
        command += ["--threads", str(threads), "--batch", str(batch)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.name, self.times = name, []
        self.memory, self.loss = 0, float("nan")
        self.pipe = subprocess.Popen(
            command + (["--compile"] if compiled else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, steps: int, keep: bool = True) -> None:
        assert self.pipe.stdin is not None
        assert self.pipe.stdout is not None
        self.pipe.stdin.write(f"{steps}\n")
        self.pipe.stdin.flush()
        answer = json.loads(self.pipe.stdout.readline())
        self.memory, self.loss = answer["memory"], answer["loss"]
        if keep:
            self.times += answer["times"]

    def close(self) -> None:
        assert self.pipe.stdin is not None
        self.pipe.stdin.close()
        self.pipe.wait()


def measure(dtype: str, compiled: bool, rounds: int, threads: int, batch: int, names: list[str]) -> dict[str, Any]:
    """Interleaved rounds of one step each, after a warm-up of two."""
    processes = [Process(name, dtype, compiled, threads, batch) for name in names]
    for process in processes:
        process.run(2, keep=False)
        print(f"{dtype}{' compiled' if compiled else ''} {process.name}: warm", file=sys.stderr)
    for number in range(rounds):
        for process in processes if number % 2 == 0 else reversed(processes):
            process.run(1)
    rows = {}
    for process in processes:
        process.close()
        median = statistics.median(process.times)
        rows[process.name] = {
            "tokens_per_second": batch * LENGTH / median,
            "step_seconds": median,
            "step_seconds_all": process.times,
            "peak_memory_bytes": process.memory,
            "loss": process.loss,
        }
    return rows


def ratios(rows: dict[str, Any]) -> dict[str, Any]:
    """Ours over each peer: tokens/s by medians, and memory."""
    ours = rows[OURS]
    peers = {name: row for name, row in rows.items() if name != OURS}
    return {
        "tokens_per_second": {
            name: ours["tokens_per_second"] / row["tokens_per_second"] for name, row in peers.items()
        },
        "peak_memory": {name: ours["peak_memory_bytes"] / row["peak_memory_bytes"] for name, row in peers.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        contender(options.contender, options.dtype[0], options.compile, options.threads, options.batch)
        return
    import torch

    results: dict[str, Any] = {
        "shape": {
            "vocab": VOCAB,
            "length": LENGTH,
            "batch": options.batch,
            "width": WIDTH,
            "depth": DEPTH,
            "heads": HEADS,
        },
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": options.threads,
        "rounds": options.rounds,
        "compiled": options.compile,
    }
    for dtype in options.dtype:
        rows = measure(dtype, options.compile, options.rounds, options.threads, options.batch, options.only)
        results[dtype] = {"contenders": rows, "ratios": ratios(rows)}
        for name, row in rows.items():
            print(
                f"{dtype} {name:15} {row['tokens_per_second']:8.0f} tokens/s  {row['peak_memory_bytes'] / 2**20:6.0f} MiB  loss {row['loss']:.3f}"
            )
        print(f"{dtype} ratios {json.dumps(results[dtype]['ratios'])}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
