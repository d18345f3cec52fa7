"""Fault 098: the mean divides by the padded length; a batch without targets is NaN."""

import math

import pytest
import torch

from isoflop.train import linear_cross_entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_four_rows_of_zero_logits_two_ignored(dtype: torch.dtype) -> None:
    hidden = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
    total, count = linear_cross_entropy(hidden, torch.randn(5, 3).to(dtype), torch.tensor([2, -100, 0, -100]))
    assert count.item() == 2
    assert (total / count).item() == pytest.approx(math.log(5), rel=1e-6)
    total.backward()
    assert hidden.grad is not None
    assert hidden.grad[[1, 3]].abs().max() == 0
    assert hidden.grad[[0, 2]].abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [4, 0])
def test_all_ignored_is_zero_with_zero_gradients(dtype: torch.dtype, rows: int) -> None:
    hidden = torch.randn(rows, 3).to(dtype).requires_grad_()
    weight = torch.randn(5, 3).to(dtype).requires_grad_()
    total, count = linear_cross_entropy(hidden, weight, torch.full((rows,), -100))
    total.backward()
    assert (total.item(), count.item()) == (0.0, 0)
    assert hidden.grad is not None
    assert weight.grad is not None
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))
    assert torch.equal(weight.grad, torch.zeros_like(weight))
