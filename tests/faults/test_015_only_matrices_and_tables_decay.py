"""Fault 015: norm gains, biases and scale parameters are decayed."""

import pytest
import torch

from isoflop.model import Architecture, build, parameter_roles
from isoflop.model.slots import Join, Norm, Position
from isoflop.recipes import load, recipes
from isoflop.train import AdamW
from tiny_runs import tiny_architecture

ARCHITECTURES = {
    **{
        name: load(name, **{"vocab": 64, "width": 32, "depth": 2, "attention.heads": 4, "attention.kv_heads": None})
        for name in recipes()
    },
    **{f"norm-{kind}": tiny_architecture(norm=kind) for kind in Norm.kinds},
    **{f"join-{kind}": tiny_architecture(join=kind) for kind in Join.kinds},
    **{f"position-{kind}": tiny_architecture(position=kind) for kind in Position.kinds},
    **{
        f"prior-{source}": tiny_architecture(attention={"heads": 2, "priors": {"kind": "mixture", "beta_is": source}})
        for source in ("learned", "per_head", "predicted")
    },
}


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_parameter_is_in_one_group_and_vectors_do_not_decay(name: str) -> None:
    architecture: Architecture = ARCHITECTURES[name]
    model = build(architecture)
    optimizer = AdamW(weight_decay=0.1).build(dict(model.named_parameters()), parameter_roles(model))
    grouped = [(weight, group["weight_decay"]) for group in optimizer.param_groups for weight in group["params"]]
    assert sorted(id(weight) for weight, _ in grouped) == sorted(id(weight) for weight in model.parameters())
    decays = {id(weight): decay for weight, decay in grouped}
    for path, weight in model.named_parameters():
        last = path.rpartition(".")[2]
        if weight.ndim < 2 or "gain" in last or "bias" in last:
            assert decays[id(weight)] == 0.0, path
    assert decays[id(model.embed.weight)] == 0.1
    assert sum(decay == 0.1 for _, decay in grouped) >= 4 * architecture.depth


def test_compiling_the_blocks_renames_nothing() -> None:
    model = build(tiny_architecture())
    before = parameter_roles(model)
    for block in model.blocks:
        block.compile()
    assert parameter_roles(model) == before


def test_a_weight_without_a_role_is_named() -> None:
    model = build(tiny_architecture())
    weights = {**dict(model.named_parameters()), "stray": torch.zeros(2)}
    with pytest.raises(ValueError, match="only in the model's weights: stray"):
        AdamW().build(weights, parameter_roles(model))
