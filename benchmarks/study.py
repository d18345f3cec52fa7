"""Runs per hour of a study: one-thread workers against one run at a time with all threads; and the loop's own overhead.

Both ways train the same runs of the same study to the same end, in turn, so that both meet the same state of the machine;
the figure is the ratio of the median times. The overhead is the CPU time of `train` beyond the same number of bare steps
(forward, backward, optimizer) on ready batches.

    python benchmarks/study.py --rounds 3 --out benchmarks/results/study.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STUDY = """
name = "benchmark"
base = "modern"
seeds = {seeds}
[change]
width = 64
depth = 2
attention.heads = 4
[training]
steps = {steps}
batch = 16
length = 64
rate = 3e-3
validation_windows = 64
[match]
budget = "none"
[arms]
alibi = {{ position = "alibi" }}
"""


def workers(file: Path, folder: Path, cores: int) -> None:
    """What `isoflop study run` does."""
    from isoflop.study.design import load_study
    from isoflop.study.execute import execute, prepare

    execute(prepare(load_study(file), folder), cores)


def one_at_a_time(file: Path, folder: Path, cores: int) -> None:
    """The usual loop: each run has all threads."""
    import torch

    from isoflop.data import load
    from isoflop.study.design import load_study
    from isoflop.train import train

    torch.set_num_threads(cores)
    design = load_study(file)
    corpus = load(design.arms[0].training.data)
    for seed in design.study.seeds:
        for arm in design.arms:
            path = folder / arm.name / str(seed)
            train(arm.architecture, arm.training, path, seed=seed, corpus=corpus, on_progress=lambda detail: None)


WAYS = {"workers": workers, "one_at_a_time": one_at_a_time}


def timed(way: str, file: Path, cores: int) -> float:
    """Wall time of one way in a fresh process, imports included on both sides."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(1 if way == "workers" else cores)}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [
            sys.executable,
            __file__,
            "--way",
            way,
            "--file",
            str(file),
            "--folder",
            folder,
            "--cores",
            str(cores),
        ]
        subprocess.run(command, check=True, env=environment)
        return time.perf_counter() - start


def overhead(steps: int = 40, rounds: int = 5) -> dict[str, float]:
    """CPU time of the loop over that of bare steps, at width 256; interleaved, by medians."""
    import torch

    from isoflop.data import Corpus, Loader, load
    from isoflop.model import build, parameter_roles
    from isoflop.recipes import load as load_architecture
    from isoflop.train import Training, train
    from isoflop.train.loss import linear_cross_entropy
    from isoflop.train.optim import set_rate

    torch.set_num_threads(1)
    architecture = load_architecture("modern", width=256, depth=4, **{"attention.heads": 4})
    training = Training(steps=steps, rate=3e-4, batch=8, length=128, validation_windows=1)
    corpus = load(training.data)
    assert isinstance(corpus, Corpus)
    batches = [Loader(corpus, batch=8, length=128).batch(step) for step in range(steps)]

    def bare() -> float:
        model = build(architecture)
        optimizer = training.optimizer.build(dict(model.named_parameters()), parameter_roles(model))
        start = time.process_time()
        for number, batch in enumerate(batches):
            if number == 1:
                start = time.process_time()  # the first step warms up, as the loop's clock has it
            optimizer.zero_grad(set_to_none=True)
            loss, count = linear_cross_entropy(model.features(batch.tokens_BT), model.head_weight, batch.targets_BT)
            (loss / count).backward()
            set_rate(optimizer, 3e-4)
            optimizer.step()
        return time.process_time() - start

    def loop() -> float:
        """CPU time of the whole call, less what it spends before the first step and on the last evaluation and save."""
        marks: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            every_step = training.override({"log_every": 1})
            train(
                architecture,
                every_step,
                folder,
                corpus=corpus,
                on_progress=lambda detail: marks.append(time.process_time()),
            )
        return marks[steps - 1] - marks[0]

    pairs = [(bare(), loop()) for _ in range(rounds)]
    bares, loops = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"bare_seconds": bares, "loop_seconds": loops, "overhead": loops / bares - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        WAYS[options.way](options.file, options.folder, options.cores)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(STUDY.format(seeds=options.seeds, steps=options.steps))
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way, row in times.items():
                row.append(timed(way, file, options.cores))
    runs = 2 * options.seeds
    medians = {way: statistics.median(row) for way, row in times.items()}
    results: dict[str, Any] = {
        "runs": runs,
        "steps": options.steps,
        "cores": options.cores,
        "seconds": times,
        "runs_per_hour": {way: 3600 * runs / seconds for way, seconds in medians.items()},
        "ratio": medians["one_at_a_time"] / medians["workers"],
        "loop": overhead(),
    }
    print(json.dumps(results, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
