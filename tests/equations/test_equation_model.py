"""Every setting's whole model against the formulas, logit by logit."""

from __future__ import annotations

import pytest
import torch

import formulas
import kinds
import models
from isoflop.model import Architecture, Transformer, parts

NAMES = {str(setting): setting.change for setting in kinds.settings()}
IN_BLOCK = {kinds.block_name(change): change for change in kinds.block_settings()}


def weights_of(model: Transformer) -> formulas.Weights:
    parameters = dict(model.named_parameters())
    return formulas.Weights({part.name: parameters[part.parameter][part.rows].tolist() for part in parts(model)})


IN_ENCODER = {kinds.encoder_name(change): change for change in kinds.encoder_settings()}


def _compare(architecture: Architecture, name: str = "") -> None:
    """Five tokens, and a source of four or of six where there is an encoder: shorter than the target, and longer."""
    model, tokens = models.lively(architecture), models.some_tokens(architecture, 1, 5)
    for length in (4, 6) if architecture.reader is not None else (0,):
        source = models.some_source(architecture, 1, length)
        read = None if source is None else source.tokens_BS[0].tolist()
        expected = formulas.logits(architecture, weights_of(model), tokens[0].tolist(), read)
        with torch.no_grad():
            found = model(tokens, source=source)[0].double()
            with models.a_last_bit_off(model):
                moved = float((model(tokens, source=source)[0].double() - found).abs().max())
        near = {"atol": 2e-5 + 4 * moved, "rtol": 1e-5}
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64), **near, msg=lambda m: f"{name}: {m}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_setting(name: str) -> None:
    _compare(kinds.tiny(NAMES[name]))


@pytest.mark.parametrize("name", IN_BLOCK)
def test_setting_in_one_block(name: str) -> None:
    _compare(kinds.tiny(IN_BLOCK[name]))


@pytest.mark.parametrize("name", IN_ENCODER)
def test_setting_in_an_encoder(name: str) -> None:
    _compare(kinds.tiny(IN_ENCODER[name]))


@pytest.mark.parametrize("chunk", range(6))
def test_pairs(chunk: int) -> None:
    for name, architecture in kinds.cover().architectures[chunk::12]:
        _compare(architecture, name)


def test_every_registered_kind_has_a_formula() -> None:
    registered = {kind for slot in kinds.model_slots().values() for kind in slot.kinds.values()}
    own = {kind for kind in registered if kind.__module__.startswith("isoflop.")}
    missing = sorted(kind.__name__ for kind in own - formulas.FORMULAS.keys())
    assert not missing, f"write a formula in tests/formulas.py for {missing}"
    assert own
