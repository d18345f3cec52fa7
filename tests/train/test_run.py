"""Runs: what they leave, how they are cut, refused, and fail."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from isoflop.data import Loader
from isoflop.model import build
from isoflop.plan import price
from isoflop.spec import SpecError
from isoflop.train import Interrupted, RunMismatch, load_model, train
from isoflop.train import checkpoint as checkpoint_module
from isoflop.train.run import data_order
from tiny_runs import (
    assert_bit_equal,
    metrics,
    saved,
    strict_json,
    tiny_architecture,
    tiny_corpus,
    tiny_run,
    tiny_training,
)


def interrupt_at(step: int, number: signal.Signals = signal.SIGINT) -> Any:
    def told(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == step:
            os.kill(os.getpid(), number)

    return told


def test_a_run_leaves_what_the_format_says(tmp_path: Path) -> None:
    record = tiny_run(tmp_path, evaluate_every=4, log_every=3)
    assert strict_json((tmp_path / "run.json").read_text()) == record
    assert (record["status"], record["reason"]) == ("finished", None)
    cost = price(tiny_architecture(), 16)
    assert record["cost"] == cost.dump()
    tokens = 8 * 4 * 16
    assert record["progress"]["tokens"] == tokens
    assert record["progress"]["flops"] == cost.training_flops_per_token * tokens
    assert record["result"]["targets"] == 5 * 16
    assert record["result"]["tokens_per_second"] == pytest.approx(4 * 16 / record["result"]["step_seconds"])
    assert record["progress"]["seconds"] == pytest.approx(7 * record["result"]["step_seconds"])  # the first is left out
    kinds = [(line["kind"], line["step"]) for line in metrics(tmp_path)]
    assert kinds == [("train", 3), ("validation", 4), ("train", 6), ("train", 8), ("validation", 8)]
    assert metrics(tmp_path)[-1]["loss"] == record["result"]["loss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint",
        "metrics.jsonl",
        "run.json",
        "tokenizer.json",
    ]


def test_the_logged_loss_and_the_result_are_those_of_the_logits(tmp_path: Path) -> None:
    architecture = tiny_architecture(dropout=0.0)
    record = tiny_run(tmp_path, architecture=architecture, validation_windows=3)
    batch = Loader(tiny_corpus(), batch=4, length=16, seed=data_order(0, 0)).batch(0)
    logits = build(architecture)(batch.tokens_BT)
    first = F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten()).item()
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(first, rel=1e-6)
    model, _, _ = load_model(tmp_path)
    batch = next(Loader(tiny_corpus(), batch=3, length=16).validation())
    last = F.cross_entropy(model(batch.tokens_BT).flatten(0, 1), batch.targets_BT.flatten()).item()
    assert record["result"]["loss"] == pytest.approx(last, rel=1e-6)


def test_evaluation_and_logging_change_nothing(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", log_every=1, evaluate_every=1, checkpoint_every=1)
    tiny_run(tmp_path / "b", log_every=8)
    assert_bit_equal(saved(tmp_path / "a"), saved(tmp_path / "b"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_state_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=rf"stopped by {number.name} at step 3; the state of step 3 is saved"):
        tiny_run(tmp_path, on_progress=interrupt_at(3, number))
    record = strict_json((tmp_path / "run.json").read_text())
    assert record["status"] == "interrupted"
    assert "again to go on" in record["reason"]
    assert record["progress"]["step"] == 3
    assert record["result"] is None
    assert signal.getsignal(number) is before


def test_a_keyboard_interrupt_between_two_steps_saves_nothing_half_done(tmp_path: Path) -> None:
    def told(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="the last complete checkpoint is untouched"):
        tiny_run(tmp_path, on_progress=told, checkpoint_every=2)
    tiny_run(tmp_path, checkpoint_every=2)
    tiny_run(tmp_path / "whole")
    assert_bit_equal(saved(tmp_path), saved(tmp_path / "whole"))


def test_runs_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(tiny_run(tmp_path, steps=2)))
    thread.start()
    thread.join()
    assert results[0]["status"] == "finished"


def test_resume_says_what_it_found(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        tiny_run(tmp_path, on_progress=interrupt_at(3))
    said: list[str] = []
    tiny_run(tmp_path, on_progress=lambda line: said.append(line.get("text", "")))
    assert said[0] == f"going on from step 3 of 8, found in {tmp_path / 'checkpoint'}"
    tiny_run(tmp_path, on_progress=lambda line: said.append(line.get("text", "")))
    assert said[-1] == f"{tmp_path}: this run is finished already"


def test_without_resume_the_same_run_starts_over(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        tiny_run(tmp_path, on_progress=interrupt_at(3))
    said: list[str] = []
    tiny_run(tmp_path, resume=False, on_progress=lambda line: said.append(line.get("text", "")))
    assert not any(said)
    assert [line["step"] for line in metrics(tmp_path) if line["kind"] == "train"] == list(range(1, 9))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rate": 0.02}, "training.rate was 0.01, now 0.02"),
        ({"steps": 16}, "training.steps was 8, now 16"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"optimizer": {"beta2": 0.99}}, "training.optimizer.beta2 was 0.95, now 0.99"),
        ({"architecture": tiny_architecture(depth=3)}, "architecture.depth was 2, now 3"),
    ],
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_another_run_is_refused_and_names_the_field(
    tmp_path: Path, changes: dict[str, Any], reason: str, resume: bool
) -> None:
    tiny_run(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(RunMismatch) as caught:
        tiny_run(tmp_path, resume=resume, **changes)
    assert reason in str(caught.value)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("\\begin{document}")
    with pytest.raises(RunMismatch, match=r"must be empty or hold a run, it holds thesis\.tex"):
        tiny_run(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ({"vocab": 100}, "vocab: must be at least 256"),
        ({"position": {"kind": "learned", "length": 8}}, "beyond the 8 positions"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, architecture: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        tiny_run(tmp_path / "run", architecture=tiny_architecture(**architecture))
    assert not (tmp_path / "run").exists()


def test_divergence_is_on_record_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    rates = {"schedule": {"kind": "constant", "warmup": 5}, "rate": 1e38, "optimizer": {"weight_decay": 0.0}}
    record = tiny_run(tmp_path, log_every=4, **rates)
    assert record["status"] == "diverged"
    step = record["progress"]["step"]
    assert record["reason"] in {f"{what} became non-finite at step {step}" for what in ("loss", "gradient norm")}
    assert record["result"] is None
    assert not (tmp_path / "checkpoint").exists()
    last = metrics(tmp_path)[-1]
    assert (last["step"], last["kind"]) == (step, "train")
    assert set(last["nonfinite"]) & {"loss", "gradient_norm"}


def test_a_diverged_step_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import isoflop.train.run as run_module

    original = run_module.optimise

    def poisoned(model: Any, masters: Any, *rest: Any, randomness: tuple[int, int], **options: Any) -> Any:
        if randomness[1] == 5:
            next(iter(masters.weights.values())).data.fill_(float("nan"))
        return original(model, masters, *rest, randomness=randomness, **options)

    monkeypatch.setattr(run_module, "optimise", poisoned)
    record = tiny_run(tmp_path, checkpoint_every=2, log_every=100)
    assert record["reason"] == "loss became non-finite at step 6"
    assert all(tensor.isfinite().all() for tensor in saved(tmp_path).values())
    assert strict_json((tmp_path / "checkpoint" / "state.json").read_text())["step"] == 4


def test_any_other_error_is_on_record_and_comes_through(tmp_path: Path) -> None:
    def told(line: dict[str, Any]) -> None:
        raise RuntimeError("the dashboard is away")

    with pytest.raises(RuntimeError, match="the dashboard is away"):
        tiny_run(tmp_path, on_progress=told)
    record = strict_json((tmp_path / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("failed", "RuntimeError: the dashboard is away")
    tiny_run(tmp_path)
    assert strict_json((tmp_path / "run.json").read_text())["status"] == "finished"


def test_bf16_and_accumulation_resume_bit_equal(tmp_path: Path) -> None:
    changes = {"precision": "bf16", "accumulate": 2}
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "cut", on_progress=interrupt_at(3), **changes)
    tiny_run(tmp_path / "cut", **changes)
    tiny_run(tmp_path / "whole", **changes)
    assert_bit_equal(saved(tmp_path / "cut"), saved(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_documents_are_trained_on(tmp_path: Path) -> None:
    record = tiny_run(tmp_path, data={"packing": "documents"})
    batch = Loader(tiny_corpus(), batch=4, length=16, packing="documents").batch(0)
    logits = build(tiny_architecture()).eval()(batch.tokens_BT, batch.positions_BT, batch.documents_BT)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten()).item()
    assert record["status"] == "finished"
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(loss, rel=0.02)  # dropout is on in the run


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tiny_runs import tiny_run
def told(line):
    if line.get("step") == 5:
        os.kill(os.getpid(), signal.SIGKILL)
tiny_run(Path(sys.argv[1]), on_progress=told, checkpoint_every=2)
"""


def test_a_killed_process_leaves_a_run_that_ends_bit_equal(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "cut")], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert strict_json((tmp_path / "cut" / "checkpoint" / "state.json").read_text())["step"] == 4
    assert [line["step"] for line in metrics(tmp_path / "cut")] == [1, 2, 3, 4, 5]
    tiny_run(tmp_path / "cut", checkpoint_every=2)
    tiny_run(tmp_path / "whole")
    assert_bit_equal(saved(tmp_path / "cut"), saved(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_the_checkpoint_is_checked_against_the_record(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "a", on_progress=interrupt_at(3))
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "b", seed=1, on_progress=interrupt_at(3))
    checkpoint_module.delete(tmp_path / "a")
    (tmp_path / "b" / "checkpoint").rename(tmp_path / "a" / "checkpoint")
    with pytest.raises(checkpoint_module.CheckpointError, match="belongs to another run"):
        tiny_run(tmp_path / "a")


def test_compile_acts_on_each_block_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))
    train(tiny_architecture(), tiny_training(compile=True, steps=1), tmp_path, corpus=tiny_corpus(), device="cpu")
    assert [type(module).__name__ for module in compiled] == ["TransformerBlock"] * 2
