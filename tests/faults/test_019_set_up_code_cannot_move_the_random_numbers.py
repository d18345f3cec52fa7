"""Fault 019: random state is restored and then overwritten before the first step, or by code that runs beside training."""

from pathlib import Path
from typing import Any

import torch

from tiny_runs import assert_bit_equal, metrics, saved, tiny_run


def test_a_caller_that_draws_and_reseeds_changes_nothing(tmp_path: Path) -> None:
    def told(line: dict[str, Any]) -> None:
        torch.manual_seed(line["step"])
        torch.rand(100)

    torch.manual_seed(1)
    tiny_run(tmp_path / "a", on_progress=told)
    torch.manual_seed(2)
    tiny_run(tmp_path / "b")
    assert_bit_equal(saved(tmp_path / "a"), saved(tmp_path / "b"))
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_training_leaves_the_callers_generator_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tiny_run(tmp_path, evaluate_every=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    losses = [
        [line["loss"] for line in metrics(tmp_path / str(seed))]
        for seed in (0, 1)
        if tiny_run(tmp_path / str(seed), seed=seed)
    ]
    assert losses[0][0] != losses[1][0]
