"""The price of an architecture: published sizes, closed forms, and FLOPs of attention by counting pairs."""

from __future__ import annotations

from typing import Any

import pytest

import kinds
from isoflop.plan.cost import count_parameters, price
from isoflop.recipes import load
from isoflop.spec import SpecError


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("llama", 6_738_415_616),
        ("bert", 109_514_298),
        ("t5", 60_506_624),
        ("original_2017", 63_045_632),
    ],
)
def test_published_sizes(recipe: str, parameters: int) -> None:
    """As checkpoints hold them: GPT-2 small, Llama 2 7B, BERT base with its head for hidden tokens, T5 small. The base model of
    2017 as its paper counts it, 65 million with a vocabulary of about 37,000: six blocks a side, and one table of tokens."""
    assert count_parameters(load(recipe)) == parameters


def test_components_of_gpt2() -> None:
    cost = price(load("gpt2"), 4)
    width, depth, hidden = 768, 12, 3072
    assert cost.components == {
        "embedding": 50257 * width,
        "position": 1024 * width,
        "attention": depth * (4 * width * width + 4 * width),
        "ffn": depth * (2 * width * hidden + hidden + width),
        "norm": (2 * depth + 1) * 2 * width,
    }
    assert cost.parameters == 124_439_808
    assert cost.non_embedding == 124_439_808 - (50257 + 1024) * width
    assert cost.kv_bytes_per_token() == 2 * 2 * depth * width
    assert cost.sites == depth


def test_a_bias_counts_with_what_it_stands_beside() -> None:
    change = {"attention": {"bias": True, "qk_norm": {"kind": "layer"}}, "ffn": {"bias": True}, "tie_head": False}
    cost = price(kinds.tiny(change), 4)
    width, head_width = 24, 4
    assert cost.components == {
        "embedding": 13 * width,
        "attention": 2 * (4 * width * width + 4 * width),
        "ffn": 2 * (2 * width * 24 + 24 + width),
        "norm": 5 * 2 * width + 2 * 2 * 2 * head_width,
        "head": 13 * width,
    }


ATTENTIONS: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "MHA": ({"heads": 6}, (6, 6, 4)),
    "GQA": ({"heads": 6, "kv_heads": 2}, (6, 2, 4)),
    "MQA": ({"heads": 6, "kv_heads": 1}, (6, 1, 4)),
    "wide heads": ({"heads": 6, "head_width": 10}, (6, 6, 10)),
    "window": ({"heads": 6, "window": 3}, (6, 6, 4)),
    "window beyond the length": ({"heads": 6, "window": 50}, (6, 6, 4)),
    "window of one": ({"heads": 6, "kv_heads": 3, "window": 1}, (6, 3, 4)),
}
FFNS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({"kind": "plain", "hidden": 30}, 2 * 30),
    "plain, default": ({"kind": "plain", "hidden": "default"}, 2 * 96),
    "GLU": ({"kind": "glu", "hidden": 20}, 3 * 20),
    "GLU, default": ({"kind": "glu"}, 3 * 64),
    "GLU, rounded up": ({"kind": "glu", "multiple": 10}, 3 * 70),
}


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("ffn", FFNS)
def test_forward_flops_are_two_for_each_weight_and_pair(attention: str, ffn: str) -> None:
    length, width, depth, vocab = 9, 24, 2, 13
    attention_change, (heads, groups, size) = ATTENTIONS[attention]
    ffn_change, ffn_rows = FFNS[ffn]
    cost = price(kinds.tiny({"attention": attention_change, "ffn": ffn_change}), length)
    matrices = width * (heads + 2 * groups) * size + heads * size * width + ffn_rows * width
    pairs = sum(
        0 <= query - key < attention_change.get("window", length) for query in range(length) for key in range(length)
    )
    per_pair = 2 * 2 * heads * size
    outside = 2 * length * (depth * matrices + vocab * width)
    assert round(cost.forward_flops_per_token * length) == outside + depth * pairs * per_pair
    assert round(cost.forward_flops_per_token_full * length) == outside + depth * length**2 * per_pair
    assert cost.training_flops_per_token == 3 * cost.forward_flops_per_token
    assert cost.kv_elements_per_token == depth * 2 * groups * size


def test_blocks_that_differ_are_priced_one_by_one() -> None:
    change = {"blocks": [{"at": "1", "attention": {"window": 2, "kv_heads": 1}, "ffn": {"hidden": 100}}]}
    both, first, second = (
        price(kinds.tiny(c), 6)
        for c in (change, {"depth": 1}, {"depth": 1, "attention": {"window": 2, "kv_heads": 1}, "ffn": {"hidden": 100}})
    )
    shared = 13 * 24 + 2 * 24  # embedding and final norm
    assert both.parameters == first.parameters + second.parameters - shared
    head = 2 * 13 * 24
    assert both.forward_flops_per_token == pytest.approx(
        first.forward_flops_per_token + second.forward_flops_per_token - head, abs=1e-9
    )
    assert both.kv_elements_per_token == 2 * 24 + 2 * 4


def test_approximate_laws_of_the_literature() -> None:
    """Kaplan et al. 2020, table 1: N = 12 L D^2 without embeddings and 2N + 2 L T D forward FLOPs, full pairs halved."""
    width, depth, length = 64, 3, 32
    change = {"width": width, "depth": depth, "attention": {"heads": 4}, "ffn": {"hidden": "default"}}
    cost = price(kinds.tiny(change), length)
    matrices = cost.non_embedding - cost.components["norm"]
    assert matrices == 12 * depth * width**2
    head = 2 * 13 * width
    assert cost.forward_flops_per_token_full == 2 * matrices + 4 * depth * length * width + head


def test_dump_is_plain_and_complete() -> None:
    cost = price(kinds.tiny(), 5)
    dumped = cost.dump()
    assert dumped["parameters"] == cost.parameters
    assert dumped["components"] == cost.components
    assert dumped["training_flops_per_token"] == cost.training_flops_per_token
    assert dumped["kv_bytes_per_token"] == 2 * 2 * 2 * 24
    assert dumped["non_embedding"] == cost.parameters - 13 * 24


def test_price_draws_no_weights_of_a_large_model() -> None:
    """A 400 GB table is priced, since nothing is allocated."""
    cost = price(kinds.tiny({"vocab": 10**10, "depth": 1, "width": 12}), 2)
    assert cost.components["embedding"] == 12 * 10**10


@pytest.mark.parametrize(
    ("length", "message"), [(13, "length 13 is beyond the 12 positions"), (0, "length must be at least 1, came 0")]
)
def test_lengths_that_cannot_be(length: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        price(kinds.tiny({"position": [{"kind": "learned", "length": 12}]}), length)
