"""A tied model lacks its head after a round trip, or stores the matrix twice."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import isoflop
from isoflop.model import build, parameter_roles

SIZES = {"vocab": 31, "width": 24, "depth": 2, "attention.heads": 2}


def test_the_state_of_a_tied_model_holds_it_once(tmp_path: Path) -> None:
    declared = isoflop.load("modern", **SIZES)
    model, path = build(declared, seed=1), tmp_path / "model.safetensors"
    save_file(model.state_dict(), path)
    stored = load_file(path)
    assert [name for name, tensor in stored.items() if tensor.shape == (31, 24)] == ["embed.weight"]
    assert set(stored) == set(parameter_roles(model))
    other = build(declared, seed=2)
    other.load_state_dict(stored, strict=True)
    tokens_BT = torch.arange(20)[None]
    assert torch.equal(other(tokens_BT), model(tokens_BT))
    assert other.head_weight is other.embed.weight


def test_the_state_of_an_untied_model_holds_both(tmp_path: Path) -> None:
    model = build(isoflop.load("modern", **SIZES, tie_head=False), seed=1)
    stored = model.state_dict()
    assert {name for name, tensor in stored.items() if tensor.shape == (31, 24)} == {"embed.weight", "head.weight"}
    assert not torch.equal(stored["embed.weight"], stored["head.weight"])


def test_a_tied_matrix_gets_the_gradients_of_both_uses() -> None:
    tied = build(isoflop.load("modern", **SIZES), seed=1)
    apart = build(isoflop.load("modern", **SIZES, tie_head=False), seed=1)
    apart.head.weight.data.copy_(apart.embed.weight.data)
    tokens_BT = torch.arange(20)[None]
    for model in (tied, apart):
        model(tokens_BT).square().sum().backward()
    torch.testing.assert_close(tied.embed.weight.grad, apart.embed.weight.grad + apart.head.weight.grad)
