"""A finite mask constant can be undercut by learned scores: the model then sees the future."""

import pytest
import torch

import isoflop
from isoflop.model import build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.term import Scoring
from models import TRAINING_KERNELS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("aligned", [True, False])
def test_a_forbidden_key_has_no_weight_however_bad_the_allowed_one(
    kernel: str, aligned: bool, dtype: torch.dtype
) -> None:
    scoring = Scoring(scale=1.0, causal=True, window=None, softcap=None, dropout=0.0, terms=())
    q = torch.tensor([[-1.0, 0.0], [0.0, 0.0]], dtype=dtype)[None, None]
    k = torch.tensor([[2e4, 0.0], [0.0, 0.0]], dtype=dtype)[None, None]  # query 0: allowed score -2e4, forbidden 0
    v = torch.tensor([[1.0, 1.0], [5.0, 5.0]], dtype=dtype)[None, None]
    positions = torch.arange(2)[None]
    out = Dense(Places(positions, positions, consecutive=aligned), kernel)(q, k, v, scoring)
    assert out[0, 0, 0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("recipe", ["modern", "gpt2", "original_2017", "t5", "llama"])
@pytest.mark.parametrize("changes", [{}, {"position": "alibi"}, {"attention.window": 5}], ids=str)
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_logit(recipe: str, changes: dict) -> None:
    sizes = {"vocab": 31, "width": 24, "depth": 2, "attention.heads": 2}
    for kernel in TRAINING_KERNELS:
        model = build(isoflop.load(recipe, **sizes, **changes), kernel=kernel).eval()
        for block in model.blocks:
            block.attention.qkv.weight[: 2 * 24] *= 1e3  # queries and keys
        tokens_BT = torch.randint(31, (2, 17), generator=torch.Generator().manual_seed(0))
        source = None if model.encoder is None else tokens_BT
        before = model(tokens_BT, source=source)
        for t in (1, 8, 16):
            changed = tokens_BT.clone()
            changed[:, t] = (changed[:, t] + 1) % 31
            after = model(changed, source=source)
            assert torch.equal(after[:, :t], before[:, :t])
            assert not torch.equal(after[:, t:], before[:, t:])
