"""Cross-entropy fused with the output projection, so that the logits of a step are never all held.

Legend: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from isoflop.model.linear import computes_wide

IGNORED = -100
"""A target that counts neither in the loss nor in the number of targets."""

LOGIT_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""Most bytes of fp32 logits held at once, by device: a CPU wants a chunk near its cache, a GPU one that fills it."""


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Summed negative log-likelihood of `targets` under the logits `hidden @ weight.T + bias`, and how many targets count.

    Formula: sum over i with targets_i != -100 of logsumexp_v(z_iv) - z_i(targets_i), in nats, where z_iv = h_i . w_v + b_v,
    or c tanh of that over c with a softcap c.

    The gradients of all inputs are computed in the forward pass, chunk by chunk, which saves the logits' memory and
    one recomputation; under `no_grad` they are not computed. The softmax runs in fp32 (fp64 for fp64 inputs) whatever
    the inputs' type, and a weight gradient that takes several chunks is accumulated in that type.

    Args:
        hidden: (..., D), the stream after the final norm.
        weight: (V, D), of the same type.
        targets: (...), integer; -100 = ignored. With no target left the sum is 0 and so is every gradient.
        bias: (V,), of the same type.
        softcap: bound on the logits.

    Returns:
        The sum, a scalar in fp32 (fp64 for fp64 inputs), and the count, an integer scalar; both on the inputs' device.
    """
    flat_ND, flat_N = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    inputs = (hidden, weight) if bias is None else (hidden, weight, bias)
    differentiate = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    total = _LinearCrossEntropy.apply(flat_ND, weight, bias, flat_N, softcap, differentiate)
    return total, (flat_N != IGNORED).sum()


def chunk_rows(vocab: int, device: str) -> int:
    """Rows of logits computed at once: as many as `LOGIT_BYTES` holds in fp32, at least one."""
    return max(1, LOGIT_BYTES.get(device, LOGIT_BYTES["cuda"]) // (4 * vocab))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        softcap: float | None,
        differentiate: bool,
    ) -> Tensor:
        accumulate = torch.promote_types(hidden_ND.dtype, torch.float32)
        rows = chunk_rows(weight_VD.shape[0], hidden_ND.device.type)
        index_N1 = targets_N.clamp(min=0).unsqueeze(1)
        counted_N1 = (targets_N != IGNORED).to(accumulate).unsqueeze(1)
        grad_ND = torch.empty_like(hidden_ND) if differentiate else hidden_ND
        grad_V = torch.zeros_like(bias_V, dtype=accumulate) if bias_V is not None and differentiate else None
        grad_VD, losses = None, []
        # Products in the inputs' own type, or wider where the machine has none of it; nothing but a chunk is held twice.
        wide = computes_wide(hidden_ND.dtype, hidden_ND.device.type)
        product = accumulate if wide else hidden_ND.dtype
        weight = weight_VD.to(product)
        for hidden, index, counted, grad in _chunks(rows, hidden_ND, index_N1, counted_N1, grad_ND):
            hidden = hidden.to(product)
            logits = torch.mm(hidden, weight.t()).to(accumulate)
            logits = logits if bias_V is None else logits.add_(bias_V)
            slope = None if softcap is None else _cap(logits, softcap)
            loss, p = _softmax(logits, index, counted)
            losses.append(loss)
            if differentiate:
                p = p.scatter_add_(1, index, torch.full_like(counted, -1.0)).mul_(counted)
                p = p if slope is None else p.mul_(slope)
                if grad_V is not None:
                    grad_V += p.sum(0)
                p = p.to(product)
                grad.copy_(torch.mm(p, weight)) if wide else torch.mm(p, weight, out=grad)
                grad_VD = _accumulate(grad_VD, p.t(), hidden, accumulate)
        if differentiate:
            ctx.save_for_backward(grad_ND, grad_VD, grad_V)
        ctx.weight_dtype = weight_VD.dtype
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_ND, grad_VD, grad_V = ctx.saved_tensors
        (scale,) = grads
        of_bias = None if grad_V is None else (grad_V * scale).to(ctx.weight_dtype)
        return grad_ND * scale, (grad_VD * scale).to(ctx.weight_dtype), of_bias, None, None, None


def _chunks(rows: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors in step, cut along the tokens; uncut when they fit, since at small sizes even a view takes its time."""
    return [tensors] if len(tensors[0]) <= rows else zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def _cap(logits: Tensor, softcap: float) -> Tensor:
    """Logits become c tanh(z / c) in their own memory; returns the slope of that, 1 - tanh²(z / c)."""
    bent = logits.div_(softcap).tanh_()
    slope = torch.addcmul(torch.ones((), dtype=bent.dtype, device=bent.device), bent, bent, value=-1)
    bent.mul_(softcap)
    return slope


def _softmax(logits: Tensor, index: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of the rows that count, and the softmax, in the logits' memory.

    Formula: logsumexp(z) = max(z) - ln(max(softmax(z))), so that the dear part on a CPU, the exponential, is taken once and
    no tiny probability is ever put into a logarithm.
    """
    picked, highest = logits.gather(1, index), logits.amax(1, keepdim=True)
    p = torch.softmax(logits, 1, out=logits)
    losses = highest - picked - p.amax(1, keepdim=True).log_()
    return torch.dot(losses.view(-1), counted.view(-1)), p


def _accumulate(grad_VD: Tensor | None, p_VC: Tensor, hidden_CD: Tensor, dtype: torch.dtype) -> Tensor:
    """grad + p @ hidden of a chunk. The product of 16-bit inputs is rounded once per chunk, the sum over chunks never."""
    if grad_VD is None:
        return torch.mm(p_VC, hidden_CD).to(dtype)
    if p_VC.dtype == dtype:
        return grad_VD.addmm_(p_VC, hidden_CD)
    return grad_VD.add_(torch.mm(p_VC, hidden_CD))
