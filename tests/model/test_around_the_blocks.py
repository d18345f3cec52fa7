"""Heads, token types, factorised tables and shared blocks: what the property tests cannot say of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kinds
from isoflop.data import Batch
from isoflop.model import Architecture, Transformer, build, parameter_roles, pool
from isoflop.plan.cost import price
from isoflop.spec import SpecError
from isoflop.train.step import batch_loss
from models import LENGTH, lively, logits_of, some_tokens

HEADS: list[dict[str, Any]] = [
    {"head": {"bias": True}},
    {"head": {"softcap": 1.5}},
    {"head": {"scale": 0.3}},
    {"head": {"bias": True, "softcap": 1.5, "scale": 0.3}, "tie_head": False},
    {"head": {"kind": "transform", "bias": True}},
    {"head": {"kind": "transform", "dense_bias": False, "norm": "rms", "softcap": 1.5}, "tie_head": False},
    {"embed": {"kind": "factorised", "width": 10}},
    {"embed": {"kind": "factorised", "width": 10, "maps": "sum"}, "head": {"kind": "transform", "bias": True}},
]


@pytest.mark.parametrize("change", HEADS, ids=str)
def test_the_loss_of_training_is_that_of_the_logits(change: dict[str, Any]) -> None:
    """The fused loss takes everything that `forward` does into account, and so do its gradients."""
    model = lively(kinds.tiny(change)).double()
    tokens = some_tokens(model.architecture, 2, LENGTH + 1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    names = dict(model.named_parameters())
    fused, _ = batch_loss(model, Batch(inputs, targets))
    plain = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=0)
    for name, mine, right in zip(
        names,
        torch.autograd.grad(fused, list(names.values())),
        torch.autograd.grad(plain, list(names.values())),
        strict=True,
    ):
        torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("change", HEADS, ids=str)
def test_generation_uses_the_same_head(change: dict[str, Any]) -> None:
    model = lively(kinds.tiny(change))
    prompt = some_tokens(model.architecture, 1, 3)
    expected = prompt[0].tolist()
    for _ in range(3):
        expected.append(int(logits_of(model, torch.tensor([expected]))[0, -1].argmax()))
    assert model.generate(prompt, 3) == [expected[3:]]


def test_a_softcap_bounds_the_logits() -> None:
    model = lively(kinds.tiny({"head": {"softcap": 0.25}}))
    assert logits_of(model, some_tokens(model.architecture, 2, LENGTH)).abs().max() <= 0.25


def test_everything_at_once_compiles() -> None:
    """One graph, with the logits and gradients that there are without the compiler."""
    around = {
        "embed": {"kind": "factorised", "width": 10, "maps": "sum", "bias": True},
        "embed_norm": "layer",
        "types": 2,
    }
    head = {"kind": "transform", "bias": True, "softcap": 2.0, "scale": 0.5}
    shared = {"depth": 3, "share": {"kind": "groups", "count": 2}, "attention_norm": "none", "form": "encoder"}
    model = lively(kinds.tiny(around, {"head": head}, shared))
    tokens = some_tokens(model.architecture, 2, LENGTH)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    types = torch.arange(LENGTH).remainder(2).expand(2, -1)
    outcomes = []
    for run in (model, compiled):
        logits = run(tokens, types=types)
        outcomes.append((logits, *torch.autograd.grad(logits.tanh().sum(), list(model.parameters()))))
    torch._dynamo.reset()
    for mine, right in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------ token types


def test_token_types_default_to_0_and_each_has_its_vector() -> None:
    model = lively(kinds.tiny({"types": 3, "form": "encoder"}))
    tokens = some_tokens(model.architecture, 2, LENGTH)
    types = torch.zeros_like(tokens)
    with torch.no_grad():
        assert torch.equal(model(tokens), model(tokens, types=types))
        types[:, 4:] = 2
        found, plain = (model.stream(model.embedded(tokens), torch.arange(LENGTH)[None], t) for t in (types, None))
    moved = model.types.weight[2] - model.types.weight[0]
    torch.testing.assert_close(found[:, 4:], plain[:, 4:] + moved, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[:, :4], plain[:, :4])


def test_token_types_that_are_not_declared_are_refused() -> None:
    model = build(kinds.tiny())
    tokens = some_tokens(model.architecture, 1, LENGTH)
    with pytest.raises(ValueError, match="has no token types; declare `types`"):
        model(tokens, types=torch.zeros_like(tokens))


# ------------------------------------------------------------------------------------------------------ shared blocks


@pytest.mark.parametrize(
    ("depth", "count", "owners"),
    [(3, 1, (0, 0, 0)), (4, 2, (0, 0, 2, 2)), (5, 2, (0, 0, 0, 3, 3)), (3, 3, (0, 1, 2))],
)
def test_groups_of_blocks(depth: int, count: int, owners: tuple[int, ...]) -> None:
    architecture = kinds.tiny({"depth": depth, "share": {"kind": "groups", "count": count}})
    assert architecture.share.owners(depth) == owners
    model = build(architecture)
    assert all(model.blocks[number] is model.blocks[owner] for number, owner in enumerate(owners))
    assert {role.block for role in parameter_roles(model).values()} - {None} == set(owners)
    assert price(architecture, LENGTH).sites == depth


@pytest.mark.parametrize("position", ["rope", "t5"])
def test_shared_blocks_are_copies_whose_gradients_are_summed(position: str) -> None:
    change = {"depth": 4, "position": position}
    shared = lively(kinds.tiny(change, {"share": {"kind": "groups", "count": 2}})).double()
    apart = Transformer(kinds.tiny(change)).double()
    apart.load_state_dict({**apart.state_dict(), **shared.state_dict()})
    tokens = some_tokens(shared.architecture, 2, LENGTH)
    together, each = shared(tokens), apart.eval()(tokens)
    torch.testing.assert_close(together, each, rtol=1e-12, atol=1e-12)
    together.square().sum().backward()
    each.square().sum().backward()
    owners = shared.architecture.share.owners(4)
    for name, parameter in shared.blocks.named_parameters():
        number, _, rest = name.partition(".")
        members = [block for block, owner in enumerate(owners) if owner == int(number)]
        copies = {dict(apart.blocks[block].named_parameters())[rest] for block in members}  # T5's table is one anyway
        summed = sum(copy.grad for copy in copies)
        torch.testing.assert_close(parameter.grad, summed, rtol=1e-9, atol=1e-9)


def test_a_shared_block_starts_as_it_does_alone() -> None:
    shared = build(kinds.tiny({"depth": 4, "share": {"kind": "groups", "count": 2}}))
    alone = dict(build(kinds.tiny({"depth": 4})).named_parameters())
    assert all(torch.equal(parameter, alone[name]) for name, parameter in shared.named_parameters())
    assert sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in alone.values())


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"share": {"kind": "groups", "count": 3}}, "share.count", "at most depth 2, came 3"),
        (
            {"share": "groups", "blocks": [{"at": "1", "norm": "rms"}]},
            "share",
            "block 1 uses .* block 0.* differ in norm",
        ),
        (
            {"embed": {"kind": "factorised", "width": 9, "maps": "sum"}, "position": "sinusoidal"},
            "position",
            "even, came 9",
        ),
    ],
)
def test_refusals(change: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        kinds.tiny(change)
    assert [".".join(map(str, problem.path)) for problem in caught.value.problems] == [path]


def test_sums_that_are_narrow_take_sines_of_their_own_width() -> None:
    narrow = {"embed": {"kind": "factorised", "width": 10, "maps": "sum"}, "position": "sinusoidal"}
    assert isinstance(kinds.tiny({**narrow, "width": 24}), Architecture)


# ------------------------------------------------------------------------------------------------------ pooling

TEXTS = torch.tensor([[0, 0, 0, 0], [-1, 0, 0, -1], [-1, -1, -1, 0]])


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("how", ["mean", "first", "last"])
def test_pooling_sees_the_text_alone(how: Any, normalise: bool) -> None:
    features = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    features[TEXTS < 0] = float("nan")
    for row, documents in enumerate(TEXTS):
        text = features[row, documents >= 0]
        expected = {"mean": text.mean(0), "first": text[0], "last": text[-1]}[how]
        expected = expected / expected.norm() if normalise else expected
        torch.testing.assert_close(pool(features, TEXTS, how, normalise)[row], expected)


def test_pooling_without_padding_in_bf16_takes_the_mean_in_fp32() -> None:
    features = torch.full((1, 1001, 2), 1.0).bfloat16()
    features[:, 0] = 300.0
    assert pool(features, normalise=False).tolist() == [[1.296875, 1.296875]]  # 1300 / 1001 = 1.2987, rounded once


@pytest.mark.parametrize(
    ("documents", "how", "message"),
    [
        ([[0, 0], [-1, -1]], "mean", "row 1 holds no text"),
        ([[0, 1], [0, 0]], "mean", "row 0 holds several documents"),
        ([[0, 0], [0, 0]], "max", "how must be one of mean, first, last, came 'max'"),
    ],
)
def test_what_pooling_refuses(documents: list[list[int]], how: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool(torch.zeros(2, 2, 3), torch.tensor(documents), how)
