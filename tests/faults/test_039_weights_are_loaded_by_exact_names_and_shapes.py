"""Fault 039: a model loads, runs and is mostly random, because names were missing, extra or prefixed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isoflop.model import build
from isoflop.train import CheckpointError
from isoflop.train.checkpoint import find, named_tensors, restore, save
from tiny_runs import assert_bit_equal, tiny_architecture

Tensors = dict[str, Tensor]


def own() -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in named_tensors(build(tiny_architecture())).items()}


def drop(tensors: Tensors) -> list[str]:
    del tensors["embed.weight"]
    return ["embed.weight is missing"]


def rename(tensors: Tensors) -> list[str]:
    tensors["embedding"] = tensors.pop("embed.weight")
    return ["embed.weight is missing", "embedding is unknown"]


def prefix(tensors: Tensors) -> list[str]:
    names = list(tensors)
    for name in names:
        tensors[f"module.{name}"] = tensors.pop(name)
    return [part for name in names for part in (f"{name} is missing", f"module.{name} is unknown")]


def reshape(tensors: Tensors) -> list[str]:
    tensors["embed.weight"] = tensors["embed.weight"].t()
    return ["embed.weight has shape (16, 256), the model's has (256, 16)"]


@pytest.mark.parametrize("damage", [drop, rename, prefix, reshape])
def test_each_name_is_listed_and_nothing_is_touched(damage: Callable[[Tensors], list[str]]) -> None:
    model = build(tiny_architecture(), seed=1)
    before = {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}
    tensors = own()
    expected = damage(tensors)
    with pytest.raises(CheckpointError) as caught:
        restore(named_tensors(model), tensors, "there")
    assert [part for part in expected if part not in str(caught.value)] == []
    assert_bit_equal({name: tensor.detach() for name, tensor in named_tensors(model).items()}, before)


def test_a_transposed_square_matrix_changes_the_checksum(tmp_path: Path) -> None:
    square = torch.arange(9.0).reshape(3, 3)
    save(tmp_path, {"w": square}, {}, {})
    first = find(tmp_path)
    assert first is not None
    save(tmp_path, {"w": square.t()}, {}, {})
    second = find(tmp_path)
    assert second is not None
    assert torch.equal(second.weights()["w"], square.t())
    assert first.state["files"]["model.safetensors"]["sha256"] != second.state["files"]["model.safetensors"]["sha256"]
