"""The run folder of a model that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isoflop.data import Codec
from isoflop.files import write_json
from isoflop.model import Transformer
from isoflop.plan import price
from isoflop.train import checkpoint
from isoflop.train.record import FORMAT, RunMismatch, environment, now, read_record

LENGTH = 1024
"""Tokens of the sequence that an imported model is priced at, where its positions reach so far."""


def save_imported(folder: str | Path, model: Transformer, codec: Codec, source: Mapping[str, Any]) -> dict[str, Any]:
    """Write a run folder with status `imported`: run.json, tokenizer.json and checkpoint/, the weights in their type.

    Args:
        source: where the model came from, kept in run.json.

    Returns:
        The content of run.json.

    Raises:
        RunMismatch: the folder holds a run, or files that are none's.
        CheckpointError: the weights cannot be written.
    """
    folder = Path(folder)
    if read_record(folder) is not None:
        raise RunMismatch(f"{folder} holds a run; choose another folder, or remove this one")
    architecture = model.architecture
    record = {
        "format": FORMAT,
        "status": "imported",
        "reason": None,
        "architecture": architecture.dump(),
        "architecture_digest": architecture.digest,
        "seed": 0,
        "source": dict(source),
        "environment": environment(),
        "cost": price(architecture, min(LENGTH, architecture.limit or LENGTH)).dump(),
        "started": (time := now()),
        "ended": time,
    }
    folder.mkdir(parents=True, exist_ok=True)
    codec.save_tokenizer(folder / "tokenizer.json")
    state = {"architecture_digest": architecture.digest, "step": 0}
    checkpoint.save(folder, checkpoint.named_tensors(model), {}, state)
    write_json(folder / "run.json", record)  # last: a folder without it is no run
    return record
