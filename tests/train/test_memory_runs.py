"""Runs of models with a memory of the segment before."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from isoflop.data import make_loader
from isoflop.model import Architecture
from isoflop.spec import SpecError
from isoflop.train import Interrupted, evaluate, evaluate_run
from isoflop.train.checkpoint import load_model
from tiny_runs import assert_bit_equal, metrics, saved, tiny_architecture, tiny_corpus, tiny_run, tiny_training


def remembering(memory: int | None = 24, **changes: Any) -> Architecture:
    return tiny_architecture(position="transformer_xl", attention={"heads": 2, "memory": memory}, **changes)


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_cut_anywhere_ends_bit_equal(tmp_path: Path, packing: str, precision: str) -> None:
    """Across the edge of an epoch, where rows begin anew; with dropout, and two micro-batches."""
    windows = make_loader(tiny_training().data, tiny_corpus(), form="decoder", batch=16, length=64, seed=0).windows
    epoch = -(-windows // 16)
    options: dict[str, Any] = {"steps": epoch + 4, "evaluate_every": 4, "accumulate": 2, "batch": 16, "length": 64}
    options |= {"architecture": remembering(100), "precision": precision, "data": {"packing": packing}}
    tiny_run(tmp_path / "whole", **options)
    for cut in (1, 3, epoch, epoch + 1):

        def told(line: dict[str, Any], cut: int = cut) -> None:
            if line["kind"] == "train" and line["step"] == cut:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            tiny_run(tmp_path / "cut", on_progress=told, **options)
    tiny_run(tmp_path / "cut", **options)
    assert_bit_equal(saved(tmp_path / "cut"), saved(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    files = json.loads((tmp_path / "cut" / "checkpoint" / "state.json").read_text())["files"]
    assert "past.safetensors" in files


def test_only_a_memory_is_saved(tmp_path: Path) -> None:
    tiny_run(tmp_path, steps=2)
    assert not (tmp_path / "checkpoint" / "past.safetensors").exists()


def test_evaluation_is_that_of_the_whole_text(tmp_path: Path) -> None:
    """A memory that holds all of the validation text: windows give each target what one long pass gives it."""
    architecture = remembering(5000, depth=1, dropout=0.0)
    record = tiny_run(tmp_path, architecture=architecture, steps=4, validation_windows=6)
    model, _, _ = load_model(tmp_path)
    tokens = torch.from_numpy(tiny_corpus().validation[: 6 * 16 + 1].astype("int64"))[None]
    with torch.no_grad():
        losses = F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none")
    assert record["result"]["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    again = evaluate_run_here(tmp_path)
    assert again == record["result"]["loss"]


def evaluate_run_here(folder: Path) -> float:
    model, architecture, _ = load_model(folder)
    sizes = {"batch": 4, "length": 16, "seed": 0}
    loader = make_loader(tiny_training().data, tiny_corpus(), form=architecture.form, remembers=True, **sizes)
    return evaluate(model, loader, 4, 6).loss


def test_evaluation_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    tiny_run(tmp_path, architecture=remembering(), steps=4)
    model, _, _ = load_model(tmp_path)
    loader = make_loader(
        tiny_training().data, tiny_corpus(), form="decoder", remembers=True, batch=4, length=16, seed=0
    )
    assert len({evaluate(model, loader, rows, 9).loss for rows in (1, 2, 5, 100)}) == 1


def test_other_lengths_walk_through_the_text_too(tmp_path: Path) -> None:
    """In a window of memory + 1 keys, segments of any length see the same, and so do their losses."""
    attention = {"heads": 2, "memory": 7, "window": 8}
    architecture = tiny_architecture(position="rope", attention=attention, dropout=0.0)
    record = tiny_run(tmp_path, architecture=architecture, steps=4, evaluate_lengths=[1, 5, 16, 80])
    losses = [one["loss"] for one in record["result"]["sets"]]
    assert losses == pytest.approx([record["result"]["loss"]] * 4, rel=1e-5)


def test_memory_helps_where_what_is_needed_is_in_the_segment_before(tmp_path: Path) -> None:
    """A text that repeats itself every eight characters, in segments of four: without a memory the first of them are a guess."""
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        word = "".join(chr(97 + int(n)) for n in torch.randint(26, (8,), generator=generator))
        (folder / f"{number}.txt").write_text(word * 30)
    losses = {}
    for name, memory in (("with", 8), ("without", None)):
        options: dict[str, Any] = {"data": {"source": str(folder), "order": "continuous"}, "length": 4, "batch": 16}
        architecture = remembering(memory, width=32, dropout=0.0)
        losses[name] = _trained(tmp_path / name, architecture, steps=120, rate=0.01, validation_windows=60, **options)
    assert losses["with"] < losses["without"] - 0.5
    assert math.isfinite(losses["without"])


def _trained(folder: Path, architecture: Architecture, **options: Any) -> float:
    from isoflop.train import train

    told = train(architecture, tiny_training(**options), folder, on_progress=lambda line: None, device="cpu")
    return told["result"]["loss"]


def test_pairs_and_a_shuffled_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"order: .*'continuous'"):
        tiny_run(tmp_path, architecture=remembering(), data={"order": "shuffled"})
    assert not tmp_path.exists() or not list(tmp_path.iterdir())


def test_the_verb_that_evaluates_again_finds_what_the_run_found(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"text {number} " * 40)
    data = {"source": str(folder)}
    loss = _trained(tmp_path / "run", remembering(), steps=4, data=data, evaluate_lengths=[8])
    found = evaluate_run(tmp_path / "run")
    assert found["validation"]["loss"] == loss
