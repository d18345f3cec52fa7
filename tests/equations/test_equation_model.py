"""Every setting's whole model against the formulas, logit by logit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import formulas
import kinds
import models
from isoflop.model import Transformer, parts

NAMES = {str(setting): setting.change for setting in kinds.settings()}
IN_BLOCK = {kinds.block_name(change): change for change in kinds.block_settings()}


def weights_of(model: Transformer) -> formulas.Weights:
    parameters = dict(model.named_parameters())
    return formulas.Weights({part.name: parameters[part.parameter][part.rows].tolist() for part in parts(model)})


def _compare(change: dict[str, Any]) -> None:
    architecture = kinds.tiny(change)
    model = models.lively(architecture)
    tokens = models.some_tokens(architecture, 1, 5)
    expected = torch.tensor(formulas.logits(architecture, weights_of(model), tokens[0].tolist()), dtype=torch.float64)
    with torch.no_grad():
        found = model(tokens)[0].double()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_setting(name: str) -> None:
    _compare(NAMES[name])


@pytest.mark.parametrize("name", IN_BLOCK)
def test_setting_in_one_block(name: str) -> None:
    _compare(IN_BLOCK[name])


@pytest.mark.parametrize("chunk", range(6))
def test_pairs(chunk: int) -> None:
    for name, architecture in kinds.cover().architectures[chunk::12]:
        model = models.lively(architecture)
        tokens = models.some_tokens(architecture, 1, 5)
        expected = formulas.logits(architecture, weights_of(model), tokens[0].tolist())
        found = model(tokens)[0].detach().double()
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64), atol=2e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_every_registered_kind_has_a_formula() -> None:
    registered = {kind for slot in kinds.model_slots().values() for kind in slot.kinds.values()}
    own = {kind for kind in registered if kind.__module__.startswith("isoflop.")}
    missing = sorted(kind.__name__ for kind in own - formulas.FORMULAS.keys())
    assert not missing, f"write a formula in tests/formulas.py for {missing}"
    assert own
