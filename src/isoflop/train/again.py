"""The model of a run folder, evaluated again: at other lengths, or on more of the text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from isoflop.files import read_json
from isoflop.train import checkpoint
from isoflop.train.batches import batches, read_corpus
from isoflop.train.evaluate import evaluate
from isoflop.train.log import strict
from isoflop.train.precision import PRECISIONS
from isoflop.train.sets import batch_rows, validation_sets
from isoflop.train.training import Training


def evaluate_run(
    folder: str | Path,
    lengths: Sequence[int] | None = None,
    windows: int | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Evaluate the last checkpoint of a run as the end of the run does; nothing is written.

    Args:
        lengths: instead of the run's `evaluate_lengths`.
        windows: instead of its `validation_windows`.
        device: None for the GPU if there is one.

    Returns:
        Strict JSON: `step` of the checkpoint, `same_text` (whether the source still gives what the run was trained on),
        `validation` as the `result` of run.json, and `sets` as there.

    Raises:
        ValueError: the folder holds no run with a checkpoint, or a model that came from elsewhere.
        SpecError: a length does not fit the architecture or the text.
    """
    folder = Path(folder)
    model, architecture, _ = checkpoint.load_model(folder)
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    record = read_json(folder / "run.json")
    if "training" not in record:
        raise ValueError(f"{folder} holds a model that was not trained here: no recipe says what to evaluate it on")
    changes = {"evaluate_lengths": lengths and list(lengths), "validation_windows": windows}
    declared = Training.parse(record["training"])
    training = declared.override({name: value for name, value in changes.items() if value is not None})
    PRECISIONS[training.precision](model)  # as the run computed: weights that are rounded, where it rounded them
    corpus = read_corpus(training)
    loader = batches(architecture, training, corpus, seed=0)
    sets = validation_sets(architecture, training, corpus, loader)
    found = evaluate(model, loader, batch_rows(training, training.length), training.validation_windows)
    last = checkpoint.find(folder)
    assert last is not None
    return {
        "step": last.state["step"],
        "same_text": loader.corpus.digest == record["corpus_digest"],
        "validation": strict({"length": training.length, **found._asdict()}),
        "sets": [one.evaluate(model) for one in sets],
    }
