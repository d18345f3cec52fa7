"""Every kernel against attention written row by row in float64, forward and backward."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import isoflop
from isoflop.model import build
from isoflop.model.attend import Dense
from isoflop.model.kernel import choose
from isoflop.model.places import Places
from isoflop.model.position import ALiBi, RoPE
from isoflop.model.term import Scoring
from models import SETTING, TRAINING_KERNELS, meeting

BATCH, HEADS, KV_HEADS, HEAD_WIDTH = 2, 4, 2, 8
ALIBI = ALiBi().term(SETTING, HEADS, HEAD_WIDTH)
CAUSAL = Scoring(scale=0.4, causal=True, window=None, softcap=None, dropout=0.0, terms=())
SCORINGS = {
    "causal": CAUSAL,
    "both_ways": replace(CAUSAL, causal=False),
    "window": replace(CAUSAL, window=5),
    "window_both_ways": replace(CAUSAL, causal=False, window=3),
    "alibi": replace(CAUSAL, terms=(ALIBI,)),
    "softcap": replace(CAUSAL, softcap=0.7),
    "all": replace(CAUSAL, window=7, softcap=0.7, terms=(ALIBI,)),
}
RUNS = [
    (kernel, name)
    for kernel in TRAINING_KERNELS
    for name, s in SCORINGS.items()
    if s.stages <= TRAINING_KERNELS[kernel].stages
]
LENGTHS = [1, 31, 32, 33, 65, 97]
# Largest error against the largest value. A bf16 number carries a relative error of 2^-9 = 2e-3 alone.
TOLERANCE = {torch.float32: (1e-6, 2e-6), torch.bfloat16: (5e-3, 1.5e-2)}


def naive(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, allowed: Tensor, bias: Tensor) -> Tensor:
    """One query after the other: only the keys it may see enter the softmax."""
    batch, heads, length, _ = q.shape
    owner = [head // (heads // k.shape[1]) for head in range(heads)]
    rows = []
    for b in range(batch):
        for i in range(length):
            keys = allowed[b, i].nonzero()[:, 0]
            scores = torch.einsum("he,hse->hs", q[b, :, i], k[b, owner][:, keys]) * scoring.scale
            if scoring.softcap is not None:
                scores = scoring.softcap * (scores / scoring.softcap).tanh()
            weights = (scores + bias[:, i, keys]).exp()
            rows.append(torch.einsum("hs,hse->he", weights / weights.sum(-1, keepdim=True), v[b, owner][:, keys]))
    return torch.stack(rows).unflatten(0, (batch, length)).transpose(1, 2)


def visible(places: Places, scoring: Scoring) -> Tensor:
    """Who may see whom, pair by pair."""
    positions = places.q_positions[0].tolist()
    documents = torch.zeros(BATCH, len(positions)) if places.q_documents is None else places.q_documents
    reach = scoring.window or len(positions)
    return torch.tensor(
        [
            [
                [
                    abs(p - s) <= reach - 1 and (s <= p or not scoring.causal) and own == other
                    for s, other in zip(positions, row, strict=True)
                ]
                for p, own in zip(positions, row, strict=True)
            ]
            for row in documents.tolist()
        ]
    )


def penalty(scoring: Scoring, q_length: int, k_length: int) -> Tensor:
    slopes = [2.0 ** (-8 * (h + 1) / HEADS) if scoring.terms else 0.0 for h in range(HEADS)]
    distance = (torch.arange(q_length)[:, None] - torch.arange(k_length)[None]).abs().double()
    return -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance


def draw(length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the gradient of the output; every value is one that bf16 can hold."""
    generator = torch.Generator().manual_seed(length)
    shapes = [HEADS, KV_HEADS, KV_HEADS, HEADS]
    drawn = [torch.randn(BATCH, heads, length, HEAD_WIDTH, generator=generator) for heads in shapes]
    return tuple(x.bfloat16().float() for x in drawn)


def plain_places(length: int, documents: bool) -> Places:
    positions = torch.arange(length)[None]
    if not documents:
        return Places(positions, positions, consecutive=True)
    # Documents of 11 tokens one after the other, and two that alternate.
    owners = torch.stack([torch.arange(length) // 11, torch.arange(length) % 2])
    return Places(positions, positions, owners, owners, consecutive=True)


@cache
def expected(length: int, name: str, documents: bool) -> list[Tensor]:
    """Output and gradients of q, k, v in float64."""
    q, k, v, gradient = (x.double() for x in draw(length))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    scoring = SCORINGS[name]
    allowed = visible(plain_places(length, documents), scoring)
    out = naive(*leaves, scoring, allowed, penalty(scoring, length, length))
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def assert_near(mine: list[Tensor], theirs: list[Tensor], dtype: torch.dtype) -> None:
    forward, backward = TOLERANCE[dtype]
    for name, a, b in zip(["out", "q", "k", "v"], mine, theirs, strict=True):
        error = (a.double() - b).abs().max() / b.abs().max().clamp(min=1e-3)
        assert error < (forward if name == "out" else backward), f"{name}: {error:.2g}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("kernel", "name"), RUNS)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_definition(length: int, kernel: str, name: str, documents: bool, dtype: torch.dtype) -> None:
    *inputs, gradient = (x.to(dtype) for x in draw(length))
    leaves = [x.requires_grad_() for x in inputs]
    out = Dense(plain_places(length, documents), kernel)(*leaves, SCORINGS[name])
    assert out.dtype == dtype
    out.backward(gradient)
    assert_near([out.detach(), *(leaf.grad for leaf in leaves)], expected(length, name, documents), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "window", "alibi"])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("length", [31, 33, 97])
def test_sliced_views_and_a_transposed_gradient(length: int, name: str, kernel: str, dtype: torch.dtype) -> None:
    """q, k and v as views of one stacked tensor, and a gradient whose strides are not the output's."""
    q, k, v, gradient = (x.to(dtype) for x in draw(length))
    stacked_BTNE = torch.cat([q, k, v], dim=1).transpose(1, 2).contiguous().requires_grad_()
    views = stacked_BTNE.transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    assert not any(view.is_contiguous() for view in views)
    out = Dense(plain_places(length, False), kernel)(*views, SCORINGS[name])
    out.backward(gradient.transpose(1, 3).contiguous().transpose(1, 3))
    gradients = stacked_BTNE.grad.transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    assert_near([out.detach(), *gradients], expected(length, name, False), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "window", "alibi"])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("length", [31, 33, 97])
def test_kv_heads_expanded_from_one(length: int, name: str, kernel: str, dtype: torch.dtype) -> None:
    """Keys and values with stride 0 over the heads: the gradient is summed over them."""
    q, k, v, gradient = draw(length)
    exact = [x.double().requires_grad_() for x in (q, k[:, :1], v[:, :1])]
    allowed, bias = visible(plain_places(length, False), SCORINGS[name]), penalty(SCORINGS[name], length, length)
    wide = [exact[0], *(x.expand(-1, HEADS, -1, -1) for x in exact[1:])]
    reference = naive(*wide, SCORINGS[name], allowed, bias)
    reference.backward(gradient.double())
    leaves = [x.detach().to(dtype).requires_grad_() for x in exact]
    wide = [leaves[0], *(x.expand(-1, HEADS, -1, -1) for x in leaves[1:])]
    out = Dense(plain_places(length, False), kernel)(*wide, SCORINGS[name])
    out.backward(gradient.to(dtype))
    assert_near([out.detach(), *(x.grad for x in leaves)], [reference.detach(), *(x.grad for x in exact)], dtype)


@pytest.mark.parametrize("name", ["causal", "window", "alibi"])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
def test_queries_that_are_fewer_than_keys(kernel: str, name: str) -> None:
    """The last 3 of 33 tokens: a triangle that starts at key 0 would be wrong."""
    q, k, v, _ = draw(33)
    positions, scoring = torch.arange(33)[None], SCORINGS[name]
    places = Places(positions[:, 30:], positions)
    out = TRAINING_KERNELS[kernel].run(meeting(q[:, :, 30:], k, v, scoring, places))
    torch.testing.assert_close(out.double(), expected(33, name, False)[0][:, :, 30:], rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize(("kernel", "name"), RUNS)
def test_fully_masked_rows_are_zero_with_finite_gradients(
    kernel: str, name: str, dropout: float, dtype: torch.dtype
) -> None:
    q, k, v, gradient = (x.to(dtype) for x in draw(33))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    owners = torch.zeros(BATCH, 33, dtype=torch.long)
    strangers = owners.clone()
    strangers[0, 4:9], strangers[1, :] = 7, 8  # no key has these documents
    places = Places(torch.arange(33)[None], torch.arange(33)[None], strangers, owners)
    out = Dense(places, kernel, training=True)(*leaves, replace(SCORINGS[name], dropout=dropout))
    out.backward(gradient)
    assert (out[0, :, 4:9] == 0).all()
    assert (out[1] == 0).all()
    assert out[0, :, 9:].abs().sum() > 0
    for leaf in leaves:
        assert leaf.grad.isfinite().all()
    assert (q.grad[0, :, 4:9] == 0).all()
    assert (q.grad[1] == 0).all()
    assert (k.grad[1] == 0).all()
    assert (v.grad[1] == 0).all()


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
def test_dropout_is_unbiased_and_only_in_training(kernel: str) -> None:
    torch.manual_seed(0)
    q, k, _, _ = draw(32)
    v = torch.ones(BATCH, KV_HEADS, 32, HEAD_WIDTH)  # then an output is the sum of its weights
    scoring = replace(CAUSAL, dropout=0.5)
    attend = Dense(plain_places(32, False), kernel, training=True)
    mean = torch.stack([attend(q, k, v, scoring) for _ in range(400)]).mean(0)
    assert mean.std() > 0
    assert mean.mean() == pytest.approx(1.0, abs=0.01)
    still = Dense(plain_places(32, False), kernel)
    torch.testing.assert_close(still(q, k, v, scoring), torch.ones_like(q), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "length", "dropout", "expected"),
    [
        ("causal", 1000, 0.0, "sdpa"),
        ("alibi", 1000, 0.0, "sdpa"),
        ("softcap", 97, 0.0, "eager"),
        ("softcap", 1000, 0.0, "banded"),
        ("softcap", 1000, 0.1, "banded"),
        ("window", 97, 0.0, "sdpa"),
        ("window", 1000, 0.0, "banded"),
        ("window", 1000, 0.1, "banded"),
    ],
)
def test_the_fastest_kernel_that_can_is_chosen(name: str, length: int, dropout: float, expected: str) -> None:
    x = torch.zeros(1, HEADS, length, HEAD_WIDTH)
    scoring = replace(SCORINGS[name], dropout=dropout)
    assert choose(meeting(x, x, x, scoring, plain_places(length, False), dropout)).name == expected


def test_a_forced_kernel_that_cannot_run_is_refused_when_the_model_is_built() -> None:
    capped = isoflop.load("modern", width=32, depth=2, blocks=[{"at": "1", "attention": {"softcap": 30.0}}])
    with pytest.raises(ValueError, match=r"'sdpa' cannot run stage cap; these can: flex, eager, banded, chunked"):
        build(capped, kernel="sdpa")
    assert build(capped, kernel="eager").kernel == "eager"


def test_an_unknown_kernel_is_refused_when_the_model_is_built() -> None:
    with pytest.raises(ValueError, match=r"'flash' is no kernel; there are flex, sdpa, eager, banded, chunked"):
        build(isoflop.load("modern", width=32, depth=1), kernel="flash")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_queries_and_keys_at_other_positions_are_each_rotated_by_their_own(layout: str) -> None:
    term = RoPE(layout=layout).term(SETTING, heads=2, head_width=8)
    scoring = Scoring(scale=8**-0.5, causal=False, window=None, softcap=None, dropout=0.0, terms=(term,))
    q, k, v = (torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    places = Places(torch.arange(5)[None] + 7, torch.arange(5)[None])
    out = Dense(places)(q, k, v, scoring)
    plain = replace(scoring, terms=())
    turned_q = term.rotate(q, places.q_positions, lambda key, make: make())
    turned_k = term.rotate(k, places.k_positions, lambda key, make: make())
    assert torch.equal(out, Dense(Places(places.k_positions, places.k_positions))(turned_q, turned_k, v, plain))
    assert not torch.allclose(turned_k, term.rotate(k, places.q_positions, lambda key, make: make()))
