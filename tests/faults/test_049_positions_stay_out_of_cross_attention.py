"""A position bias is added where a decoder looks at an encoder, or one bias serves both attentions."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isoflop.model import Architecture, Source, Transformer
from isoflop.model.attend import Dense
from isoflop.model.memory import Memory
from isoflop.model.places import Places
from isoflop.model.slots import Position
from models import lively

SOURCE, TARGET = 7, 5
ORDER = torch.tensor([3, 0, 6, 1, 5, 2, 4])
NARROW = {"kind": "penalty", "measure": {"kind": "gaussian", "sigma": 0.01, "centre": "diagonal"}}


def model_with(position: Any, **cross: Any) -> Transformer:
    attention = {"heads": 2, "window": 4, "priors": "penalty"}
    table = {"vocab": 23, "width": 16, "depth": 2, "position": position, "attention": attention}
    return lively(Architecture.parse({"form": "encoder_decoder", **table, **({"cross": cross} if cross else {})}))


def read(model: Transformer) -> Memory:
    """What the encoder made of a source whose last two tokens are padding."""
    documents = torch.tensor([[0] * (SOURCE - 2) + [-1] * 2])
    memory = model.read(Source(torch.arange(SOURCE)[None], documents_BS=documents))
    assert memory is not None
    return memory


def permuted(memory: Memory, *, positions: bool) -> Memory:
    """The same states in another order, with their mask, and with their positions or without."""
    places, documents = memory.places, memory.places.k_documents
    assert documents is not None
    where = places.k_positions[:, ORDER] if positions else places.k_positions
    moved = replace(places, k_positions=where, k_documents=documents[:, ORDER], consecutive=False)
    return Memory(memory.states_BSD[:, ORDER], moved)


def features(model: Transformer, memory: Memory) -> Tensor:
    positions = torch.arange(TARGET)[None]
    attend = Dense(Places(positions, positions, consecutive=True), memory=memory)
    return model.encode(torch.arange(TARGET)[None], positions, attend)


@pytest.mark.parametrize("position", list(Position.kinds))
@torch.no_grad()
def test_without_a_prior_across_the_order_of_the_source_is_not_seen(position: str) -> None:
    model = model_with(position)
    memory = read(model)
    expected = features(model, memory)
    for positions in (False, True):
        found = features(model, permuted(memory, positions=positions))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    other = Memory(memory.states_BSD.roll(1, 0) + 1, memory.places)
    assert (features(model, other) - expected).abs().max() > 1e-2, "the source is looked at"


@torch.no_grad()
def test_a_prior_across_goes_by_the_positions_of_the_source() -> None:
    model = model_with("t5", kind="multi_head", heads=2, priors=NARROW)
    memory = read(model)
    expected = features(model, memory)
    moved = features(model, permuted(memory, positions=True))
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-5)
    assert (features(model, permuted(memory, positions=False)) - expected).abs().max() > 1e-2


@torch.no_grad()
def test_a_narrow_prior_along_the_diagonal_reads_one_state() -> None:
    """Query i of the target gets the value of place i of the source, whichever state stands there."""
    model = model_with("t5", kind="multi_head", heads=2, priors=NARROW)
    memory, positions = read(model), torch.arange(TARGET)[None]
    everything = replace(memory.places, k_documents=None, q_documents=None)
    cross = model.blocks[0].cross
    for states in (memory.states_BSD, memory.states_BSD[:, ORDER]):
        attend = Dense(Places(positions, positions, consecutive=True), memory=Memory(states, everything))
        _, v_BGSE = cross.keys_values(states)
        expected = cross.o(v_BGSE.transpose(1, 2).flatten(2))[:, :TARGET]
        torch.testing.assert_close(cross(torch.randn(1, TARGET, 16), attend), expected, rtol=1e-5, atol=1e-5)
