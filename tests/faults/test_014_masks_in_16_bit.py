"""NaN in half precision from mask arithmetic: constants overflow, and smallest values are added."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.position import ALiBi
from isoflop.model.slots import Prior
from isoflop.model.term import Scoring, Term
from models import SETTING, TRAINING_KERNELS

LENGTH, HEADS = 40, 4
NARROW = {"kind": "gaussian", "sigma": 0.01}
PRIORS: list[dict[str, Any]] = [
    {"kind": "penalty", "gamma_is": "per_head"},
    {"kind": "penalty", "measure": NARROW},
    {"kind": "penalty", "measure": {**NARROW, "sigma_is": "predicted", "centre": "before"}},
    {"kind": "penalty", "measure": {"kind": "gaussian_transformer", "w": 300.0, "w_is": "per_head"}},
    {"kind": "mixture", "measure": NARROW, "beta_is": "predicted"},
    {"kind": "mixture", "heads": [1], "gamma": 1e5},
    {"kind": "multiplicative", "measure": NARROW},
    {"kind": "multiplicative", "measure": NARROW, "decay": "softmax"},
    {"kind": "multiplicative", "measure": NARROW, "on": "absolute"},
    {"kind": "multiplicative", "measure": NARROW, "on": "probabilities"},
    {"kind": "hard_coded"},
    {"kind": "sink", "logit": -7e4, "heads": [0, 2]},
]
PLAIN = Scoring(scale=0.35, causal=True, window=None, softcap=None, dropout=0.0, terms=())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_every_combination_of_masks_and_biases(
    causal: bool, window: int | None, alibi: bool, documents: bool, kernel: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    terms = (ALiBi().term(SETTING, HEADS, 8),) if alibi else ()
    scoring = replace(PLAIN, causal=causal, window=window, terms=terms)
    positions = torch.arange(LENGTH)[None]
    owners = torch.arange(LENGTH)[None] // 7 if documents else None
    places = Places(positions, positions, owners, owners)
    leaves = [torch.randn(1, HEADS, LENGTH, 8, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    out = Dense(places, kernel)(*leaves, scoring)
    out.float().square().sum().backward()
    exact = Dense(places, "eager")(*(leaf.detach().float() for leaf in leaves), scoring)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=3e-2)
    for leaf in leaves:
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_every_prior(prior: Any, dtype: torch.dtype) -> None:
    """Rows without a key, windows and documents beside each way a prior acts, with exponents far below 16 bit."""
    positions, owners = torch.arange(LENGTH)[None], torch.arange(LENGTH)[None] // 7
    places = Places(positions, positions, owners, torch.where(owners == 2, 9, owners))
    scoring = replace(PLAIN, window=5, terms=(started(Prior.parse(prior).term(SETTING, HEADS, 8)),))
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, HEADS, LENGTH, 8, generator=generator).to(dtype) for _ in range(3)]
    exact = Dense(places, "eager")(*(x.float() for x in drawn), scoring)
    assert scoring.stages & {"mix", "scale", "add", "sink"}
    for kernel in TRAINING_KERNELS.values():
        if not scoring.stages <= kernel.stages:
            continue
        leaves = [x.clone().requires_grad_() for x in drawn]
        out = Dense(places, kernel.name)(*leaves, scoring)
        assert not out[:, :, 14:21].any(), "rows of a document without keys"
        torch.testing.assert_close(out.float(), exact, rtol=0, atol=3e-2)
        out.float().square().sum().backward()
        assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
        assert all(p.grad is None or p.grad.isfinite().all() for p in scoring.terms[0].parameters())


def started(term: Term) -> Term:
    """With its numbers where they start, and maps of zeros."""
    with torch.no_grad():
        for module in term.modules():
            for name, parameter in module.named_parameters(recurse=False):
                parameter.copy_(torch.tensor(getattr(module, "initial", {}).get(name, 0.0)))
    return term


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
def test_a_bias_beyond_the_range_of_fp16(kernel: str, dtype: torch.dtype) -> None:
    """ALiBi at distance 200,000 is below -65504: such keys get no weight, and nothing is NaN."""
    positions = torch.tensor([[0, 1, 200_000, 200_001]])
    scoring = replace(PLAIN, terms=(ALiBi().term(SETTING, HEADS, 8),))
    v = torch.eye(4, 8, dtype=dtype).expand(1, HEADS, 4, 8)
    zeros = torch.zeros(1, HEADS, 4, 8, dtype=dtype)
    out = Dense(Places(positions, positions), kernel)(zeros, zeros, v, scoring)
    assert (out[:, :, 2:, :2] == 0).all()
    torch.testing.assert_close(out.float().sum(-1), torch.ones(1, HEADS, 4), rtol=0, atol=1e-2)
