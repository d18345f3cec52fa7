"""A memory of the segments before: what is seen through it, what is not, and what generation makes of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kinds
from isoflop.data import Batch
from isoflop.generate import generate
from isoflop.model import Past, Transformer, build
from isoflop.plan import price
from isoflop.train.precision import PRECISIONS
from isoflop.train.step import optimise, segment_output
from models import FP32, lively, some_tokens
from properties import walked

POSITIONS = ["transformer_xl", "rope", "alibi", "t5", "relative", "none"]


def model_of(memory: int | None = 4, position: Any = "transformer_xl", **changes: Any) -> Transformer:
    attention = {"memory": memory, **changes.pop("attention", {})}
    return lively(kinds.tiny({"position": position, "attention": attention, **changes}))


@torch.no_grad()
def segments(model: Transformer, *tokens: Tensor, **options: Any) -> list[Tensor]:
    past, found = Past(), []
    for segment in tokens:
        features, past = model.segment(segment, past, **options)
        found.append(features)
    return found


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("memory", [1, 3, 5])
def test_exactly_the_declared_positions_are_seen(position: str, memory: int) -> None:
    """In one block, a query of the second segment sees `memory` positions before it and its own segment up to itself."""
    model = model_of(memory, position, depth=1)
    tokens = some_tokens(model.architecture, 1, 10)
    before = segments(model, *tokens.split([6, 4], 1))[1]
    for place in range(10):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % model.architecture.vocab
        seen = (segments(model, *changed.split([6, 4], 1))[1] != before).any(-1)[0].tolist()
        assert seen == [6 - memory <= place <= 6 + query for query in range(4)], f"token {place}"


def test_a_short_segment_leaves_the_rest_of_the_memory_to_older_ones() -> None:
    model = model_of(5, depth=1)
    tokens = some_tokens(model.architecture, 1, 9)
    before = segments(model, *tokens.split([4, 2, 3], 1))[2]
    for place in range(9):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % model.architecture.vocab
        seen = bool((segments(model, *changed.split([4, 2, 3], 1))[2][:, :1] != before[:, :1]).any())
        assert seen == (1 <= place <= 6), f"token {place}"


def test_without_a_past_a_memory_changes_nothing() -> None:
    own, plain = model_of(4), model_of(None)
    tokens = some_tokens(own.architecture, 2, 7)
    assert torch.equal(own(tokens), plain(tokens))


def test_weights_are_those_of_the_same_model_without_a_memory() -> None:
    own, plain = (build(kinds.tiny({"attention": {"memory": memory}}), seed=1).state_dict() for memory in (4, None))
    assert own.keys() == plain.keys()
    assert all(torch.equal(own[name], plain[name]) for name in own)


def test_no_gradient_reaches_the_segment_before() -> None:
    """But the matrices of keys and values get one from it."""
    model = model_of(4, depth=1)
    first, second = some_tokens(model.architecture, 1, 8).split(4, dim=1)
    _, past = model.segment(first, Past())
    assert not any(stream.requires_grad for stream in past.streams)
    features, _ = model.segment(second, past)
    features[:, 0].square().sum().backward()
    table = model.embed.weight.grad
    assert table is not None
    unread = sorted(set(range(model.architecture.vocab)) - set(second[0].tolist()))
    assert not table[unread].any()
    own = model.get_parameter("blocks.0.attention.qkv.weight").grad
    model.zero_grad()
    model.segment(second, Past())[0][:, 0].square().sum().backward()
    alone = model.get_parameter("blocks.0.attention.qkv.weight").grad
    assert own is not None
    assert alone is not None
    assert not torch.allclose(own, alone)


@pytest.mark.parametrize("position", POSITIONS)
def test_documents_do_not_leak_through_the_memory(position: str) -> None:
    """A document that goes on sees its own past; one that begins sees nobody's; ids of a row are its own."""
    model = model_of(20, position)
    tokens = some_tokens(model.architecture, 2, 10)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 6, 6, 6, 6, 6]])
    found = walked(model, tokens, [5, 3, 2], documents)
    for row in range(2):
        for document in documents[row].unique():
            span = documents[row] == document
            alone = walked(model, tokens[row : row + 1, span], [int(span.sum())])[0]
            torch.testing.assert_close(found[row, span], alone, **FP32)


def test_a_row_that_does_not_go_on_sees_nothing_of_the_segment_before() -> None:
    model = model_of(4)
    first, second, third = some_tokens(model.architecture, 3, 12).split(4, dim=1)
    with torch.no_grad():
        _, past = model.segment(first, Past())
        found, past = model.segment(second, past.continued(torch.tensor([True, False, True])))
        torch.testing.assert_close(found[[0, 2]], segments(model, first, second)[1][[0, 2]], **FP32)
        torch.testing.assert_close(found[1], segments(model, second)[0][1], **FP32)
        after, _ = model.segment(third, past.continued(torch.tensor([True, True, True])))
        torch.testing.assert_close(after[1], segments(model, second, third)[1][1], **FP32)
        torch.testing.assert_close(after[0], segments(model, first, second, third)[2][0], **FP32)
    assert past.continued(torch.tensor([False] * 3)) == Past() == past.continued(None)


def test_padding_on_the_left_of_the_first_segment_is_not_seen() -> None:
    model = model_of(9)
    tokens = some_tokens(model.architecture, 1, 8)
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), tokens], dim=1)
    positions, documents = torch.arange(10)[None] - 2, torch.tensor([[-1] * 2 + [0] * 8])
    with torch.no_grad():
        _, past = model.segment(padded[:, :6], Past(), positions[:, :6].clamp(min=0), documents[:, :6])
        found, _ = model.segment(padded[:, 6:], past, positions[:, 6:], documents[:, 6:])
    torch.testing.assert_close(found, segments(model, tokens[:, :4], tokens[:, 4:])[1], **FP32)


@pytest.mark.parametrize("attention", [{"memory": 3, "window": 4}, {"memory": 30}])
def test_generation_reaches_as_far_as_segments_do(attention: dict[str, int]) -> None:
    """A window of memory + 1, or a memory of all: greedy tokens are those of a walk through segments of any size."""
    model = model_of(attention=attention)
    prompt = some_tokens(model.architecture, 1, 6)
    [written] = generate(model, prompt, 9)
    text = torch.cat([prompt, torch.tensor([written])], dim=1)
    for split in ([6] + [1] * 9, [5, 5, 5], [2, 4, 9]):
        likeliest = model.logits(walked(model, text, split))[0, 5:-1].argmax(-1)
        assert likeliest.tolist() == written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("position", "kernel"),
    [
        *itertools.product(["alibi", "rope"], ["sdpa", "banded", "chunked"]),
        *itertools.product(["transformer_xl", "relative"], ["banded", "chunked"]),
    ],
)
def test_kernels_equal_eager(position: str, kernel: str, dtype: torch.dtype) -> None:
    """Outputs and gradients of a long second segment, past the edges of blocks of queries."""
    for window in (None, 80):
        declared = kinds.tiny({"position": position, "attention": {"memory": 50, "window": window}, "depth": 1})
        tokens, outcome = some_tokens(declared, 2, 250), {}
        for name in ("eager", kernel):
            model = lively(declared, name).to(dtype)
            _, past = model.segment(tokens[:, :100], Past())
            features, _ = model.segment(tokens[:, 100:], past)
            features.float().tanh().sum().backward()
            outcome[name] = [features.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        for found, expected in zip(outcome[kernel], outcome["eager"], strict=True):
            # In bf16 each number is rounded once, and sums of 300 of them are as far apart as those roundings.
            scale = float(expected.float().abs().max())
            atol = scale * (2e-5 if dtype == torch.float32 else 2e-2)
            torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=atol)


def test_accumulation_remembers_for_each_part() -> None:
    """Four rows at once, or two by two: the same updates over three steps."""
    declared = kinds.tiny({"position": "transformer_xl", "attention": {"memory": 5}})
    tokens = some_tokens(declared, 4, 13)
    ended = []
    for accumulate in (1, 2):
        model = build(declared, seed=1)
        masters = PRECISIONS["fp32"](model)
        optimizer = torch.optim.SGD(masters.weights.values(), lr=0.5)
        pasts: list[Past] = []
        for step in range(3):
            at = slice(4 * step, 4 * step + 4)
            batch = Batch(tokens[:, at], tokens[:, 4 * step + 1 : 4 * step + 5], continues_B=torch.full((4,), step > 0))
            optimise(model, masters, optimizer, batch, rate=0.5, accumulate=accumulate, pasts=pasts)
        assert [past.streams[0].shape for past in pasts] == [(4 // accumulate, 5, 24)] * accumulate
        ended.append({name: weight.detach().clone() for name, weight in masters.weights.items()})
    for name, weight in ended[0].items():
        torch.testing.assert_close(ended[1][name], weight, rtol=1e-4, atol=1e-5)


def test_a_batch_says_which_rows_go_on() -> None:
    model = model_of(4)
    tokens = some_tokens(model.architecture, 2, 9)
    first, second = (Batch(tokens[:, at : at + 4], tokens[:, at + 1 : at + 5]) for at in (0, 4))
    with torch.no_grad():
        _, past = segment_output(model, first, Past())
        told = replace(second, continues_B=torch.tensor([True, False]))
        output, _ = segment_output(model, told, past)
    torch.testing.assert_close(output.hidden[0], segments(model, tokens[:, :4], tokens[:, 4:8])[1][0], **FP32)
    torch.testing.assert_close(output.hidden[1], segments(model, tokens[:, 4:8])[0][1], **FP32)


def test_tensors_and_back() -> None:
    model = model_of(4)
    _, past = model.segment(some_tokens(model.architecture, 2, 6), Past())
    hidden = past.continued(torch.tensor([True, False]))
    again = Past.of(hidden.tensors())
    assert hidden.documents_BM is not None
    assert again.documents_BM is not None
    assert torch.equal(again.documents_BM, hidden.documents_BM)
    assert all(torch.equal(a, b) for a, b in zip(again.streams, past.streams, strict=True))
    assert Past.of({}) == Past() == Past.of(Past().tensors())


def test_the_price_of_a_memory_by_hand() -> None:
    """One block, width 24, 6 heads of 4, T = 10, M = 5: pairs sum over i of 5 + i + 1; k and v of 5 positions more."""
    own, plain = (price(kinds.tiny({"depth": 1, "attention": {"memory": memory}}), 10) for memory in (5, None))
    projected, pairs = 2 * 5 * 24 * 2 * 24, 4 * 24 * 5 * 10
    assert own.forward_flops_per_token * 10 == plain.forward_flops_per_token * 10 + projected + pairs
    assert own.training_flops_per_token * 10 == plain.training_flops_per_token * 10 + 2 * projected + 3 * pairs
    assert own.parameters == plain.parameters
    assert own.kv_elements_per_token == plain.kv_elements_per_token
