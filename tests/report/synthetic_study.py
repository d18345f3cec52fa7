"""A study folder as a real study writes it, from a known formula and a keyed generator, with what goes wrong in life."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

EFFECTS = {"base": 0.0, "rms": -0.021, "swiglu": -0.048, "rope": -0.12, "post": 0.065, "window": 0.002, "deep": -0.01}
VERDICTS = {
    "rms": "unresolved",
    "swiglu": "better",
    "rope": "better",
    "post": "worse",
    "window": "equivalent",
    "deep": "unresolved",
}
CHANGES: dict[str, dict[str, Any]] = {
    "base": {},
    "rms": {"norm": "rms"},
    "swiglu": {"ffn": {"kind": "glu", "activation": "silu"}},
    "rope": {"position": "rope"},
    "post": {"join": "post"},
    "window": {"attention": {"window": 16}},
    "deep": {"depth": 8, "width": 48},
}
SLOWER = {"swiglu": 1.08, "rope": 1.04, "window": 0.93, "deep": 1.35}
FLOPS = {"swiglu": 1.004, "window": 0.92, "deep": 1.06}
ENVIRONMENT = {
    "isoflop": "0.1.0",
    "python": "3.11.7",
    "torch": "2.13.0",
    "platform": "Linux-x86_64",
    "threads": 1,
    "load_average": 0.7,
}
TRAINING = {
    "steps": 300,
    "batch": 16,
    "length": 64,
    "optimizer": {"kind": "adamw", "rate": 0.001},
    "data": {"source": "stdlib", "tokenizer": {"kind": "bytes"}, "seed": 0},
}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, allow_nan=False))


def cost(arm: str) -> dict[str, Any]:
    parts = {
        "embedding": 16384,
        "attention": 32768,
        "ffn": 65536 + (128 if arm == "swiglu" else 0),
        "norm": 320 if arm == "rms" else 640,
        "head": 0,
        "position": 0 if arm == "rope" else 4096,
    }
    flops = round(240_000 * FLOPS.get(arm, 1.0))
    return {
        "parameters": sum(parts.values()),
        "components": parts,
        "forward_flops_per_token": flops,
        "training_flops_per_token": 3 * flops,
        "kv_bytes_per_token": 1024,
    }


def write_run(
    folder: Path,
    arm: str,
    seed: int,
    status: str = "finished",
    evaluations: int = 30,
    depth: int = 6,
    gap: int | None = None,
    shift: float = 0.0,
) -> float:
    """One run of 300 steps (a lost one stops at 120); returns its final bits per byte."""
    draw = np.random.default_rng([seed, sum(map(ord, arm))])
    shared = np.random.default_rng(seed).normal(0, 0.03)
    final = 3.43 + shared + EFFECTS.get(arm, shift) + draw.normal(0, 0.01)
    last = 300 if status == "finished" else 120
    step_seconds = 0.012 * SLOWER.get(arm, 1.0) * (1 + 0.03 * draw.random())
    price = cost(arm)
    lines: list[dict[str, Any]] = []
    every = max(1, 300 // evaluations)
    for step in range(every, last + 1, every):
        axes = {
            "step": step,
            "tokens": 1024 * step,
            "flops": 1024 * step * price["training_flops_per_token"],
            "seconds": step_seconds * step,
        }
        bits = final + 4.6 * np.exp(-step / 45) - 4.6 * np.exp(-300 / 45) + 0.002 * draw.normal()
        norms = [
            float(
                f"{0.4 * np.exp(0.25 * block * (arm == 'post')) * np.exp(-step / 200) * (1 + 0.3 * draw.random()):.4g}"
            )
            for block in range(depth)
        ]
        broken = status == "diverged" and step == last
        train = {
            "kind": "train",
            **axes,
            "loss": None if broken else bits * 0.693,
            "rate": 0.001,
            "gradient_norm": float(np.linalg.norm(norms)),
            "gradient_norm_by_block": norms,
        }
        validation = {"kind": "validation", **axes, "loss": bits * 0.693, "bits_per_byte": float(bits)}
        if broken or step == gap:
            validation |= {"loss": None, "bits_per_byte": None, "nonfinite": ["loss", "bits_per_byte"]}
        if broken:
            train["nonfinite"] = ["loss"]
        lines += [train, validation]
    if status == "finished":
        lines[-1].update(bits_per_byte=final, loss=final * 0.693)
    reason = {
        "diverged": f"loss became non-finite at step {last}",
        "failed": "MemoryError: </script><b>out of memory</b>",
    }.get(status)
    result = {
        "loss": final * 0.693,
        "bits_per_byte": final,
        "targets": 100000,
        "bytes": 100000,
        "step_seconds": step_seconds,
        "tokens_per_second": 1024 / step_seconds,
        "peak_memory_bytes": 1 << 26,
    }
    run = {
        "format": 1, "status": status, "reason": reason, "architecture": {"width": 64}, "architecture_digest": "0" * 16, "training": TRAINING, "training_digest": "1" * 16, "seed": seed,
        "stream_digest": "ab", "corpus_digest": "cd", "environment": ENVIRONMENT, "cost": price,
        "progress": {"step": last, "steps": 300, "tokens": 1024 * last, "flops": 1024 * last * price["training_flops_per_token"], "seconds": step_seconds * last},
        "result": result if status == "finished" else None, "started": "2026-01-01T00:00:00Z", "ended": None if status == "running" else "2026-01-01T00:00:04Z",
    }  # fmt: skip
    write(folder / "run.json", run)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    return final


def outcome(arm: str, seed: int, status: str, value: float | None) -> dict[str, Any]:
    step_seconds = 0.012 * SLOWER.get(arm, 1.0)
    reason = {
        "diverged": "loss became non-finite at step 120",
        "failed": "MemoryError: </script><b>out of memory</b>",
    }.get(status)
    return {
        "seed": seed,
        "status": status,
        "reason": reason,
        "value": value,
        "loss": value and value * 0.693,
        "seconds": 300 * step_seconds,
        "step_seconds": step_seconds,
        "tokens": 307200,
        "flops": 2.2e11,
        "path": f"runs/{arm}/{seed}",
    }


def summary(arm: str, runs: list[dict[str, Any]], base: dict[int, float], verdict: str) -> dict[str, Any]:
    """An arm's entry of results.json; the interval is made by hand (t for five degrees of freedom), not by the package."""
    values = {run["seed"]: run["value"] for run in runs if run["value"] is not None}
    pairs = {seed: value - base[seed] for seed, value in values.items() if seed in base}
    d = np.array(list(pairs.values()))
    sd = float(d.std(ddof=1)) if len(d) > 1 else None
    half = 2.570582 * sd / len(d) ** 0.5 if sd is not None else None
    mean = float(d.mean()) if len(d) else None
    difference = {
        "n": len(d), "values": {str(seed): value for seed, value in pairs.items()}, "mean": mean, "sd": sd,
        "low": mean - half if mean is not None and half is not None else None, "high": mean + half if mean is not None and half is not None else None,
        "p": 0.0012, "p_permutation": 0.031, "p_holm": 0.0072 if verdict in ("better", "worse") else 0.31, "p_equivalence": 0.2, "seeds_needed": 9 if verdict == "unresolved" else None, "correlation": 0.84,
    }  # fmt: skip
    slow = SLOWER.get(arm, 1.0)
    count = {status: sum(run["status"] == status for run in runs) for status in ("failed", "diverged")}
    return {
        "name": arm, "is_base": False, "change": CHANGES.get(arm, {"width": 80}), "cost": cost(arm),
        "knob": {"field": "ffn.hidden", "value": 257, "budget": "params", "base": 119424, "arm": 119400, "residual": -0.0002} if arm == "swiglu" else None,
        "difference": difference if pairs else None, "verdict": verdict if pairs else "failed",
        "ratio": {"parameters": cost(arm)["parameters"] / cost("base")["parameters"], "flops": FLOPS.get(arm, 1.0), "seconds": {"mean": slow, "low": slow - 0.02, "high": slow + 0.02}},
        "axes": {"steps": verdict, "tokens": verdict, "flops": verdict, "seconds": "worse" if slow > 1.3 else verdict} if pairs else None,
        "runs": runs, "n": len(values), **count,
        "mean": float(np.mean(list(values.values()))) if values else None, "sd": float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None,
    }  # fmt: skip


def write_study(
    folder: Path,
    arms: Sequence[str] = tuple(EFFECTS),
    seeds: int = 6,
    lost: dict[tuple[str, int], str] | None = None,
    evaluations: int = 30,
) -> Path:
    """A study; `lost` gives the status of runs that did not finish, by (arm, seed)."""
    lost = {} if lost is None else lost
    base: dict[int, float] = {}
    entries: list[dict[str, Any]] = []
    for place, arm in enumerate(arms):
        runs = []
        for seed in range(seeds):
            status = lost.get((arm, seed), "finished")
            value = write_run(
                folder / "runs" / arm / str(seed),
                arm,
                seed,
                status,
                evaluations,
                gap=150 if (place, seed) == (1, 2) else None,
                shift=0.03 * np.sin(place),
            )
            runs.append(outcome(arm, seed, status, value if status == "finished" else None))
            if place == 0:
                base[seed] = value
        verdict = VERDICTS.get(arm, "unresolved")
        entry = summary(arm, runs, base, verdict)
        entries.append(
            entry | {"is_base": True, "verdict": "base", "axes": None, "difference": None, "change": {}, "ratio": None}
            if place == 0
            else entry
        )
    sd = entries[0]["sd"]
    states = [run["status"] for entry in entries for run in entry["runs"]]
    results = {
        "format": 1, "name": "demo", "metric": "bits_per_byte", "unit": "bits/byte", "confidence": 0.95, "margin": 0.01 * entries[0]["mean"], "margin_fraction": 0.01,
        "noise": {"arm": "base", "n": seeds, "mean": entries[0]["mean"], "sd": sd, "band": 2 * sd / seeds**0.5 if sd is not None else None}, "arms": entries,
        "spent": {"runs": len(states), **{s: states.count(s) for s in ("finished", "diverged", "failed")}, "seconds": 171.5, "tokens": 12_902_400, "flops": 9.3e12},
    }  # fmt: skip
    write(folder / "results.json", results)
    declared = [
        {"name": arm, "change": CHANGES.get(arm, {"width": 80}), "architecture": {"width": 64}, "knob": None}
        for arm in arms
    ]
    architecture = {
        "form": "decoder",
        "vocab": 256,
        "width": 64,
        "depth": 6,
        "norm": {"kind": "layer"},
        "attention": {"heads": 4},
        "ffn": {"kind": "mlp", "hidden": 256},
    }
    study = {
        "format": 1,
        "name": "demo",
        "base": architecture,
        "training": TRAINING,
        "arms": declared,
        "match": {"budget": "params"},
        "seeds": list(range(seeds)),
        "margin": 0.01,
        "digest": "f" * 16,
    }
    write(folder / "study.json", study)
    return folder
