"""A run small enough to train in a tenth of a second, and readers for what it leaves."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from isoflop.data import Corpus, Data, load
from isoflop.model import Architecture
from isoflop.train import Training, train

IDLE_PROGRESS = lambda line: None  # noqa: E731


@functools.cache
def tiny_corpus() -> Corpus:
    """About 15 kB in twenty files."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(20):
            text = "".join(f"line {index * number} of file {index}: {number**2}\n" for number in range(10 + 2 * index))
            (Path(folder) / f"{index}.txt").write_text(text)
        return load(Data(source=folder))


def tiny_architecture(**changes: Any) -> Architecture:
    return Architecture(**{"vocab": 256, "width": 16, "depth": 2, "dropout": 0.1, "attention": {"heads": 2}, **changes})


def tiny_training(**changes: Any) -> Training:
    defaults = {"batch": 4, "length": 16, "steps": 8, "rate": 0.01, "log_every": 1, "validation_windows": 5}
    return Training(**{**defaults, **changes})


def tiny_run(
    folder: Path,
    *,
    seed: int = 0,
    architecture: Architecture | None = None,
    on_progress: Any = IDLE_PROGRESS,
    resume: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    return train(
        architecture or tiny_architecture(),
        tiny_training(**changes),
        folder,
        seed=seed,
        resume=resume,
        corpus=tiny_corpus(),
        on_progress=on_progress,
        device="cpu",
    )


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line without its times, which no two runs share."""
    lines = [strict_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def saved(folder: Path) -> dict[str, Tensor]:
    """Weights and moments of the last checkpoint."""
    files = (folder / "checkpoint" / f"{name}.safetensors" for name in ("model", "optimizer"))
    return {name: tensor for file in files for name, tensor in safetensors.torch.load_file(file).items()}


def assert_bit_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
