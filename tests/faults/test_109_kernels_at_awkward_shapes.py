"""A fused kernel is wrong for special strides, lengths or masks: lengths 1 beyond a multiple of 32, stride 0, views.

The full grid, with gradients, is in tests/model/test_kernel.py; here a whole model is compared, forward and backward.
"""

from typing import Any

import pytest
import torch

import isoflop
from isoflop.model import build


@pytest.mark.parametrize("length", [1, 31, 32, 33, 65, 97])
@pytest.mark.parametrize(
    "changes", [{}, {"attention.kv_heads": 1}, {"attention.window": 32}, {"position": "alibi"}], ids=str
)
def test_fused_and_plain_models_agree_forward_and_backward(changes: dict[str, Any], length: int) -> None:
    sizes = {"vocab": 31, "width": 32, "depth": 2, "attention.heads": 4, "init": {"kind": "normal", "std": 0.2}}
    declared = isoflop.load("modern", **sizes, **changes)
    tokens_BT = torch.randint(31, (2, length), generator=torch.Generator().manual_seed(length))
    weight = torch.randn(2, 31, length, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    results = []
    for kernel in ("eager", "sdpa"):
        model = build(declared, kernel=kernel)
        out = model(tokens_BT)
        out.backward(weight)
        results.append((out.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (plain, plain_gradients), (fused, fused_gradients) = results
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    for name, gradient in plain_gradients.items():
        scale = gradient.abs().max()
        torch.testing.assert_close(fused_gradients[name] / scale, gradient / scale, rtol=0, atol=1e-5, msg=name)
