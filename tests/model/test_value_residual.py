"""Value residuals: what crosses from the first block to the others, in every way that a model is run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import kinds
from isoflop.model import Transformer
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.plan.cost import price
from models import FP32, lively, logits_of, some_tokens

RESIDUALS = ["fixed", "learned", "lerp"]


def model_of(residual: Any, **change: Any) -> Transformer:
    return lively(kinds.tiny({"depth": 3, "attention": {"value_residual": residual}}, change))


def gradients(model: Transformer, logits: Tensor) -> dict[str, Tensor]:
    weight = torch.linspace(-1, 1, logits.numel()).view_as(logits)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad((logits * weight).sum(), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def assert_same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_without_a_share_of_the_first_block_nothing_is_changed() -> None:
    model, plain = model_of("learned"), lively(kinds.tiny({"depth": 3}))
    weights = model.state_dict()
    shares = [name for name in weights if name.endswith("shares")]
    assert shares == [f"blocks.{i}.attention.values.mix.shares" for i in (1, 2)]
    plain.load_state_dict({name: value for name, value in weights.items() if name not in shares})
    tokens = some_tokens(model.architecture, 2, 7)
    assert not torch.allclose(logits_of(model, tokens), logits_of(plain, tokens))
    for name in shares:
        model.get_parameter(name).data.copy_(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(logits_of(model, tokens), logits_of(plain, tokens), **FP32)


def test_without_a_share_of_their_own_later_blocks_have_the_values_of_the_first() -> None:
    """SVFormer, one set of values for all blocks: the value matrices of later blocks lose their use."""
    model = model_of("learned")
    for block in list(model.blocks)[1:]:
        block.attention.values.mix.shares.data.copy_(torch.tensor([1.0, 0.0]))
    tokens = some_tokens(model.architecture, 2, 7)
    before = logits_of(model, tokens)
    rows = 24
    for block in list(model.blocks)[1:]:
        block.attention.qkv.weight.data[-rows:].normal_()
    assert torch.equal(logits_of(model, tokens), before)
    model.blocks[0].attention.qkv.weight.data[-rows:].normal_()
    assert not torch.allclose(logits_of(model, tokens), before)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_cache_keeps_nothing_more(residual: str) -> None:
    assert (
        price(kinds.tiny({"attention": {"value_residual": residual}}), 7).kv_elements_per_token
        == price(kinds.tiny(), 7).kv_elements_per_token
    )


def test_a_block_alone_mixes_in_the_first_that_does_not() -> None:
    """Only the third block declares it: the first gives its values and the second has no part in it."""
    architecture = kinds.tiny({"depth": 3, "blocks": [{"at": "2", "attention": {"value_residual": "lerp"}}]})
    names = [name for name, _ in lively(architecture).named_parameters() if ".values." in name]
    assert names == ["blocks.2.attention.values.mix.share"]


@pytest.mark.parametrize("residual", RESIDUALS)
def test_blocks_that_are_computed_again_in_the_backward_pass(residual: str) -> None:
    """Activation checkpointing: values of the first block are remembered from its first run, and get every gradient."""
    model = model_of(residual)
    tokens = some_tokens(model.architecture, 2, 7)
    plain = model(tokens)
    positions = torch.arange(7)[None]
    attend = Dense(Places(positions, positions, consecutive=True))
    z_BTD = model.embed(tokens)
    for block in model.blocks:
        z_BTD = checkpoint(block, z_BTD, attend, use_reentrant=False)
    again = model.final_norm(z_BTD) @ model.head_weight.T
    torch.testing.assert_close(again, plain, **FP32)
    assert_same(gradients(model, again), gradients(model, plain))


@pytest.mark.parametrize("residual", RESIDUALS)
def test_blocks_that_are_compiled_one_by_one(residual: str) -> None:
    """Values cross from one compiled graph to the next with their gradient."""
    torch._dynamo.reset()
    model, compiled = model_of(residual), model_of(residual)
    for block in compiled.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    tokens = some_tokens(model.architecture, 2, 7)
    plain, other = model(tokens), compiled(tokens)
    torch.testing.assert_close(other, plain, **FP32)
    assert_same(gradients(compiled, other), gradients(model, plain))
    torch._dynamo.reset()
