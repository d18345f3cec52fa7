"""The fused loss against F.linear and F.cross_entropy in fp64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.train import loss as loss_module
from isoflop.train.loss import IGNORED, chunk_rows, linear_cross_entropy

N, D, V = 23, 7, 11


def problem(dtype: torch.dtype = torch.float64, ignored: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64) * 3
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, V, (N,), generator=generator)
    targets[torch.randperm(N, generator=generator)[:ignored]] = IGNORED
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def reference(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    total = F.cross_entropy(F.linear(hidden, weight), targets, ignore_index=IGNORED, reduction="sum")
    return total.detach(), *torch.autograd.grad(total, (hidden, weight))


@pytest.mark.parametrize("rows", [1, 4, 23, 1000])
@pytest.mark.parametrize("ignored", [0, 5])
def test_equals_cross_entropy_in_fp64_however_it_is_cut(
    rows: int, ignored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss_module.LOGIT_BYTES, "cpu", rows * 4 * V)
    hidden, weight, targets = problem(ignored=ignored)
    total, count = linear_cross_entropy(hidden, weight, targets)
    gradients = torch.autograd.grad(total, (hidden, weight))
    expected, *expected_gradients = reference(hidden, weight, targets)
    assert count.item() == N - ignored
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [2, 255, 1000, 5003])
def test_any_vocabulary(vocab: int, dtype: torch.dtype) -> None:
    """The softmax is taken in place, by kernels that differ with the length of a row."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(9, D, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(vocab, D, generator=generator) * 3).to(dtype).requires_grad_()
    targets = torch.randint(0, vocab, (9,), generator=generator)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    found = (total.detach(), *torch.autograd.grad(total, (hidden, weight)))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for mine, right in zip(found, reference(hidden, weight, targets), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=tolerance, atol=tolerance)


def test_gradient_is_scaled_by_what_comes_from_above_and_may_be_taken_twice() -> None:
    hidden, weight, targets = problem()
    total, _ = linear_cross_entropy(hidden, weight, targets)
    once = torch.autograd.grad(total, (hidden, weight), retain_graph=True)
    scaled = torch.autograd.grad(total / 4, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(total, (hidden, weight))
    for gradient, quarter, repeated in zip(once, scaled, again, strict=True):
        assert torch.equal(quarter, gradient / 4)
        assert torch.equal(repeated, gradient)


def test_shapes_of_a_batch_and_a_tied_matrix() -> None:
    hidden, weight, targets = problem(ignored=0)
    tied = weight.detach().clone().requires_grad_()
    embedded = tied[targets].reshape(1, N, D)
    total, _ = linear_cross_entropy(embedded, tied, targets.reshape(1, N))
    (gradient,) = torch.autograd.grad(total, tied)
    expected = F.cross_entropy(tied[targets] @ tied.t(), targets, reduction="sum")
    (right,) = torch.autograd.grad(expected, tied)
    torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)
    assert hidden.grad is None


def test_no_grad_computes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = problem()
    expected, *_ = reference(hidden, weight, targets)
    monkeypatch.setattr(loss_module, "_accumulate", lambda *_: pytest.fail("a gradient was computed"))
    with torch.no_grad():
        total, _ = linear_cross_entropy(hidden, weight, targets)
    assert not total.requires_grad
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rows", [4, 1000])
def test_bf16_takes_the_softmax_in_fp32(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.LOGIT_BYTES, "cpu", rows * 4 * V)
    hidden, weight, targets = problem(torch.bfloat16)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    gradients = torch.autograd.grad(total, (hidden, weight))
    expected, *expected_gradients = reference(hidden, weight, targets)
    assert total.dtype == torch.float32
    # The logits are rounded to 8 bits, the sum of losses is not: a bf16 sum would be a multiple of 1/4 here.
    torch.testing.assert_close(total.double(), expected, rtol=3e-3, atol=0)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient.double() - right).norm() / right.norm() < 0.01


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    total, _ = linear_cross_entropy(hidden, weight, torch.tensor([1, 1]))
    assert total.item() == 2e4  # the first row is wrong by the whole gap of 2e4, the second right
    (gradient,) = torch.autograd.grad(total, hidden)
    assert gradient.tolist() == [[2.0], [0.0]]


def test_chunks_follow_the_budget() -> None:
    assert chunk_rows(256, "cpu") == (16 << 20) // 1024
    assert chunk_rows(10**9, "cpu") == 1


# ------------------------------------------------------------------------------------------------------ bias and softcap


def bent_reference(tensors: list[Tensor], targets: Tensor, softcap: float | None) -> list[Tensor]:
    """The plain formula in fp64, and its gradients by autograd."""
    hidden, weight, bias = leaves = [tensor.detach().double().requires_grad_() for tensor in tensors]
    logits = hidden @ weight.T + bias
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    total = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return [total.detach(), *torch.autograd.grad(total, leaves)]


def bent(dtype: torch.dtype, softcap: float | None, rows: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list, list]:
    monkeypatch.setitem(loss_module.LOGIT_BYTES, "cpu", rows * 4 * V)
    hidden, weight, targets = problem(dtype)
    bias = torch.linspace(-2, 3, V, dtype=torch.float64).to(dtype).requires_grad_()
    total, count = linear_cross_entropy(hidden, weight, targets, bias, softcap)
    assert count.item() == N - 5
    found = [total.detach(), *torch.autograd.grad(total, (hidden, weight, bias))]
    return found, bent_reference([hidden, weight, bias], targets, softcap)


@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize("softcap", [None, 3.0, 30.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_bias_and_softcap_equal_the_plain_formula(
    dtype: torch.dtype, tolerance: float, softcap: float | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mine, right in zip(*bent(dtype, softcap, rows, monkeypatch), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [4, 1000])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_bias_and_softcap_in_bf16(softcap: float | None, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (total, *gradients), (expected, *right) = bent(torch.bfloat16, softcap, rows, monkeypatch)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), expected, rtol=3e-3, atol=0)
    for gradient, truth in zip(gradients, right, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient.double() - truth).norm() / truth.norm() < 0.01


def test_a_bias_alone_may_want_a_gradient() -> None:
    hidden, weight, targets = problem()
    bias = torch.zeros(V, dtype=torch.float64, requires_grad=True)
    total, _ = linear_cross_entropy(hidden.detach(), weight.detach(), targets, bias)
    (gradient,) = torch.autograd.grad(total / 2, bias)
    torch.testing.assert_close(gradient, bent_reference([hidden, weight, bias], targets, None)[3] / 2)
