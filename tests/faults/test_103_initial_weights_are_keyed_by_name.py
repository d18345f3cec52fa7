"""The same seed gives other weights when an unrelated module or the number of threads changes: runs are not paired."""

from typing import Any

import pytest
import torch
from torch import Tensor

from isoflop.model import Architecture, build, parts

BASE = Architecture(
    vocab=40,
    width=32,
    depth=3,
    position="rope",
    init="xavier_normal",
    attention={"heads": 4, "kv_heads": 2},
    ffn={"kind": "glu", "hidden": 48},
)


def initial(architecture: Architecture, seed: int = 0) -> dict[str, Tensor]:
    """By the name of each part, whatever it is stacked with."""
    model = build(architecture, seed=seed)
    values = dict(model.named_parameters())
    return {part.name: values[part.parameter].detach()[part.rows] for part in parts(model)}


def changed_names(change: dict[str, Any]) -> set[str]:
    """Parts that both have in one shape and that differ."""
    before, after = initial(BASE), initial(BASE.override(change))
    common = {name for name in before.keys() & after.keys() if before[name].shape == after[name].shape}
    assert len(common) >= 15
    return {name for name in common if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    "change",
    [
        {"tie_head": False},
        {"position": ["learned", "rope"]},
        {"position": "alibi"},
        {"attention": {"qk_norm": "rms"}},
        {"attention": {"bias": True}},
        {"attention": {"window": 4}},
        {"norm": "rms"},
        {"join": "post"},
        {"depth": 5},
        {"dropout": 0.5},
        {"blocks": [{"at": "0", "ffn": {"hidden": 7}}]},
        {"ffn": {"activation": "gelu"}},
        {"vocab": 41},
    ],
    ids=str,
)
def test_what_two_architectures_have_in_common_starts_equal(change: dict[str, Any]) -> None:
    assert changed_names(change) == set()


def test_heads_that_are_stacked_otherwise_start_equal() -> None:
    """One stacked matrix has other rows with other key/value heads; the query part is the same."""
    before, after = initial(BASE), initial(BASE.override({"attention": {"kv_heads": 4}}))
    assert torch.equal(before["blocks.1.attention.q.weight"], after["blocks.1.attention.q.weight"])
    assert before["blocks.1.attention.k.weight"].shape != after["blocks.1.attention.k.weight"].shape


def test_a_plain_feed_forward_shares_the_value_matrix_of_a_gated_one() -> None:
    before, after = initial(BASE), initial(BASE.override({"ffn": {"kind": "plain", "hidden": 48}}))
    assert torch.equal(before["blocks.2.ffn.ffn_in.weight"], after["blocks.2.ffn.ffn_in.weight"])


def test_threads_and_the_global_generator_play_no_part() -> None:
    first = initial(BASE)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        torch.manual_seed(99)
        torch.randn(7)
        state = torch.get_rng_state()
        second = initial(BASE)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_changes_every_matrix() -> None:
    first, second = initial(BASE, 0), initial(BASE, 1)
    same = {name for name in first if torch.equal(first[name], second[name])}
    assert {name.rpartition(".")[2] for name in same} == {"gain", "bias"}
