"""FlexAttention: forward on a CPU, where it has no backward pass; both on a GPU where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import isoflop
from isoflop.model import KERNELS, Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.kernel import choose
from isoflop.model.places import Places
from isoflop.model.term import Meeting, Scoring

HEADS, KV_HEADS, WIDTH, LENGTH = 4, 2, 16, 21
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "encoder": {"form": "encoder"},
    "window": {"attention": {"window": 5}},
    "both ways in a window": {"form": "encoder", "attention": {"window": 5}},
    "alibi": {"position": "alibi"},
    "t5": {"position": "t5"},
    "softcap": {"attention": {"softcap": 0.7}},
    "sink": {"attention": {"priors": "sink", "window": 5}},
    "distance on one head": {"attention": {"priors": [{"kind": "penalty", "heads": [1]}]}},
    "gaussian": {
        "attention": {"priors": [{"kind": "penalty", "measure": {"kind": "gaussian", "sigma_is": "per_head"}}]}
    },
    "factor": {"attention": {"priors": [{"kind": "multiplicative", "gamma_is": "learned"}]}},
    "factor on absolutes": {"attention": {"priors": [{"kind": "multiplicative", "on": "absolute", "heads": [0, 2]}]}},
    "several": {
        "position": ["t5", "alibi"],
        "attention": {"softcap": 2.0, "window": 9, "priors": ["sink", "penalty", "multiplicative"]},
    },
}


def scoring_of(change: dict[str, Any]) -> Scoring:
    attention = {"heads": HEADS, "kv_heads": KV_HEADS, **change.get("attention", {})}
    plain = {"width": HEADS * WIDTH, "depth": 1, "position": "none"}
    model = build(Architecture.parse({**plain, **change, "attention": attention}), seed=1)
    scoring: Scoring = model.blocks[0].attention.scoring
    with torch.no_grad():
        for term in scoring.terms:
            for parameter in term.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(2))
    return scoring


def places_of(packed: str) -> Places:
    count = torch.arange(LENGTH)[None]
    if packed == "whole":
        return Places(count, count, consecutive=True)
    if packed == "after a memory":
        return Places(count, count, consecutive=True).after(3, None)
    owners = torch.stack([count[0] // 8, count[0] % 2])
    positions = torch.stack([count[0] % 8, count[0]])
    return Places(positions, positions, owners, owners)


def drawn(places: Places, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, LENGTH), *(((KV_HEADS, places.k_positions.shape[1]),) * 2))
    return [torch.randn(2, heads, length, WIDTH, generator=generator).to(device) for heads, length in shapes]


def met(scoring: Scoring, places: Places, qkv: list[torch.Tensor]) -> Meeting:
    return Meeting(qkv[0], *qkv, scoring, places, lambda key, make: make())


@pytest.mark.parametrize("packed", ["whole", "packed", "after a memory"])
@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_equals_the_definition(name: str, packed: str) -> None:
    scoring, places = scoring_of(CHANGES[name]), places_of(packed)
    one = met(scoring, places, drawn(places))
    torch.testing.assert_close(KERNELS["flex"].run(one), KERNELS["eager"].run(one), atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_a_query_that_sees_nothing_gets_nothing() -> None:
    places = places_of("packed")
    strangers = replace(places, q_documents=torch.full((2, LENGTH), 99))
    for name in ("nothing", "sink"):
        one = met(scoring_of(CHANGES[name]), strangers, drawn(places))
        assert not KERNELS["flex"].run(one).any()


@torch.no_grad()
def test_a_whole_model() -> None:
    change = {"width": 64, "depth": 2, "attention": {"heads": 4, "softcap": 3.0}, "position": "t5", "vocab": 31}
    architecture = isoflop.load("modern", **change)
    tokens = torch.arange(40).view(2, 20) % 31
    logits = [build(architecture, kernel=name, seed=0).eval()(tokens) for name in ("flex", "eager")]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "prior",
    [
        {"kind": "penalty", "measure": {"kind": "gaussian", "sigma_is": "predicted"}},
        {"kind": "multiplicative", "decay": "softmax"},
    ],
)
def test_what_depends_on_more_than_the_distance_is_refused(prior: dict[str, Any]) -> None:
    one = met(scoring_of({"attention": {"priors": [prior]}}), places_of("whole"), drawn(places_of("whole")))
    with torch.no_grad(), pytest.raises(ValueError, match=r"the distance alone.*take 'banded' or 'chunked'"):
        KERNELS["flex"].run(one)


def test_stages_that_it_has_not_are_refused_when_the_model_is_built() -> None:
    for change, stage in (
        ({"position": "relative"}, "relate, values"),
        ({"attention": {"heads": 4, "dropout": 0.1}}, "dropout"),
        ({"attention": {"heads": 4, "priors": "mixture"}}, "mix"),
    ):
        with pytest.raises(ValueError, match=rf"'flex' cannot run stage {stage}; these can: "):
            build(isoflop.load("modern", width=64, depth=1, **change), kernel="flex")


def test_training_on_a_cpu_is_refused() -> None:
    places = places_of("whole")
    q, k, v = drawn(places)
    with pytest.raises(ValueError, match="no backward pass on a CPU"):
        KERNELS["flex"].run(met(scoring_of({}), places, [q.requires_grad_(), k, v]))


def test_it_is_not_chosen_on_a_cpu() -> None:
    for change in CHANGES.values():
        places = places_of("whole")
        assert choose(met(scoring_of(change), places, drawn(places))).name != "flex"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention's fused kernels need a GPU")
@pytest.mark.parametrize("packed", ["whole", "packed"])
@pytest.mark.parametrize("name", CHANGES)
def test_forward_and_backward_on_a_gpu(name: str, packed: str) -> None:
    scoring, places = scoring_of(CHANGES[name]), places_of(packed)
    tensors = (places.q_positions, places.k_positions, places.q_documents, places.k_documents)
    moved = Places(*(x if x is None else x.cuda() for x in tensors), places.consecutive)
    for term in scoring.terms:
        term.cuda()
    found = []
    for kernel in ("flex", "eager"):
        leaves = [x.requires_grad_() for x in drawn(places, "cuda")]
        wanted = [*leaves, *(p for term in scoring.terms for p in term.parameters())]
        out = Dense(moved, kernel)(*leaves, scoring)
        found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
    for flexed, exact in zip(*found, strict=True):
        torch.testing.assert_close(flexed, exact, atol=1e-2, rtol=1e-2)
