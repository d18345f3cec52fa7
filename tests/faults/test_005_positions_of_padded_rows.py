"""Shorter rows of a padded batch give other text than alone: position ids were one arange for all rows."""

from typing import Any

import pytest
import torch

from isoflop.model import Architecture, Transformer, build

PROMPT = [5, 6, 7]
POSITIONS: list[Any] = [
    "sinusoidal",
    {"kind": "learned", "length": 16},
    "alibi",
    {"kind": "rope", "base": 50.0},
    {"kind": "rope", "base": 50.0, "layout": "interleaved"},
    ["learned", "rope"],
    {"kind": "t5", "buckets": 4, "max_distance": 6},
    {"kind": "relative", "reach": 2, "query": True},
    "transformer_xl",
    "none",
]


def model_with(position: Any) -> Transformer:
    init = {"kind": "normal", "std": 0.5}
    return build(
        Architecture(vocab=23, width=16, depth=2, position=position, attention={"heads": 2}, init=init), seed=1
    ).eval()


@pytest.mark.parametrize("position", POSITIONS, ids=str)
@torch.no_grad()
def test_left_padding(position: Any) -> None:
    model = model_with(position)
    alone = model(torch.tensor([PROMPT]))[0, -1]
    padded = torch.tensor([[0, 0, *PROMPT]])
    logits = model(padded, torch.tensor([[0, 0, 0, 1, 2]]), torch.tensor([[-1, -1, 0, 0, 0]]))[0, -1]
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", [p for p in POSITIONS if p not in ("none", "alibi")], ids=str)
@torch.no_grad()
def test_the_probe_notices_shared_positions(position: Any) -> None:
    """Positions 2, 3, 4 for the same prompt: absolute kinds change, and a rotation alone does not."""
    model = model_with(position)
    alone = model(torch.tensor([PROMPT]))[0, -1]
    shifted = model(torch.tensor([PROMPT]), torch.tensor([[2, 3, 4]]))[0, -1]
    absolute = any("embed" in kind.stages for kind in model.architecture.position)
    assert ((shifted - alone).abs().max() > 1e-2) == absolute


@pytest.mark.parametrize("position", POSITIONS, ids=str)
@torch.no_grad()
def test_right_padding(position: Any) -> None:
    model = model_with(position)
    alone = model(torch.tensor([PROMPT]))
    padded = model(torch.tensor([[*PROMPT, 0, 0]]))[:, :3]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_five_tokens_of_a_ragged_batch(position: Any) -> None:
    model = model_with(position)
    prompts = [PROMPT, [1, 2, 3, 4, 8, 9, 10], [22]]
    assert model.generate(prompts, 5) == [model.generate([prompt], 5)[0] for prompt in prompts]


@pytest.mark.parametrize("position", POSITIONS, ids=str)
@torch.no_grad()
def test_packed_documents(position: Any) -> None:
    """Two documents in one row, positions restarting: each is as it is alone."""
    model, other = model_with(position), [9, 10, 11, 12]
    row = torch.tensor([[*other, *PROMPT]])
    positions, documents = torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    packed = model(row, positions, documents)
    torch.testing.assert_close(packed[:, :4], model(torch.tensor([other])), rtol=0, atol=1e-5)
    torch.testing.assert_close(packed[:, 4:], model(torch.tensor([PROMPT])), rtol=0, atol=1e-5)
