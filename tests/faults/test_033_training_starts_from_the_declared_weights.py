"""Fault 033: weights keep framework defaults or uninitialised memory instead of the declared scheme."""

from pathlib import Path
from typing import Any

import pytest
import torch

import isoflop.train.run as run_module
from isoflop.model import build
from isoflop.model.init import initialise
from isoflop.recipes import load, recipes
from tiny_runs import tiny_architecture, tiny_run

SENTINEL = 12345.0


@pytest.mark.parametrize("name", recipes())
def test_no_memory_survives_and_running_it_twice_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.nn.Module.to_empty

    def filled(module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        original(module, **options)
        for weight in module.parameters():
            weight.data.fill_(SENTINEL)
        return module

    monkeypatch.setattr(torch.nn.Module, "to_empty", filled)
    architecture = load(
        name, **{"vocab": 64, "width": 32, "depth": 2, "attention.heads": 4, "attention.kv_heads": None}
    )
    model = build(architecture, seed=3)
    assert [path for path, weight in model.named_parameters() if (weight == SENTINEL).any()] == []
    before = [weight.detach().clone() for weight in model.parameters()]
    initialise(model, architecture, 3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_spread_of_each_matrix_is_the_declared_one() -> None:
    model = build(tiny_architecture(width=256, depth=2, init={"kind": "normal", "std": 0.02}))
    matrices = {path: weight.std().item() for path, weight in model.named_parameters() if weight.ndim == 2}
    assert matrices == {path: pytest.approx(0.02, rel=0.05) for path in matrices}
    assert len(matrices) >= 9


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_begins_with_them(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    original = run_module.optimise

    def spy(model: Any, masters: Any, *rest: Any, **options: Any) -> Any:
        seen.append({name: weight.detach().clone() for name, weight in masters.weights.items()})
        return original(model, masters, *rest, **options)

    monkeypatch.setattr(run_module, "optimise", spy)
    tiny_run(tmp_path, steps=1, seed=7, precision=precision)
    expected = dict(build(tiny_architecture(), seed=7).named_parameters())
    assert seen[0].keys() == expected.keys()
    assert all(torch.equal(seen[0][name], weight) for name, weight in expected.items())
