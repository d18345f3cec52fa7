"""From queries, keys and values to outputs: the definition of attention, and faster ways to compute the same.

A kernel declares the stages it can run; `choose` takes the fastest that can run all that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.model.linear import computes_wide
from isoflop.model.slots import Once, Scoring


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand.

    Attributes:
        q_positions, k_positions: position ids, (B or 1, T) and (B or 1, S).
        q_documents, k_documents: document ids of the same shapes, or None when all is one document. A query sees only
            keys of its own document.
        aligned: queries are the keys, in order of position and of one document, so that the causal mask is the plain
            triangle. Said by whoever made the positions, never guessed from shapes.
    """

    q_positions: Tensor
    k_positions: Tensor
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    aligned: bool = False

    def allowed(self, scoring: Scoring) -> Tensor:
        """The mask, True where a query may attend: (B or 1, 1, T, S)."""
        q, k = self.q_positions[:, None, :, None], self.k_positions[:, None, None, :]
        mask = k <= q if scoring.causal else torch.ones_like(k <= q)
        if scoring.window is not None:
            mask = mask & ((q - k).abs() < scoring.window)
        if self.q_documents is not None and self.k_documents is not None:
            mask = mask & (self.q_documents[:, None, :, None] == self.k_documents[:, None, None, :])
        return mask


Run = Callable[[Tensor, Tensor, Tensor, Scoring, Places, Once, float], Tensor]


@dataclass(frozen=True)
class Kernel:
    """A way to compute attention.

    Attributes:
        name: what a user forces it by.
        stages: what it can run.
        run: (q_BHTE, k_BGSE, v_BGSE, scoring, places, once, dropout) -> o_BHTE.
    """

    name: str
    stages: frozenset[str]
    run: Run


def eager(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, places: Places, once: Once, dropout: float) -> Tensor:
    """The definition, in fp32 whatever the inputs are.

    s = scale q kᵀ;  s = c tanh(s / c);  s = s + bias;  p = softmax(s over the allowed keys), 0 where none is;  o = p v.
    Query head h reads key/value head h // (H / G).
    """
    k_BHSE = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    v_BHSE = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    scores = (q.float() @ k_BHSE.float().transpose(-1, -2)) * scoring.scale
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    for term in scoring.acting("add"):
        scores = scores + term.add(places.q_positions, places.k_positions, once)
    allowed = once(("allowed", scoring.causal, scoring.window), lambda: places.allowed(scoring))
    # A row without an allowed key gets a uniform softmax first and zeros after: -inf throughout would give NaN gradients.
    scores = scores.masked_fill(~allowed & allowed.any(-1, keepdim=True), float("-inf"))
    weights = F.dropout(scores.softmax(-1) * allowed, dropout)
    return (weights @ v_BHSE.float()).to(q.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, places: Places, once: Once, dropout: float) -> Tensor:
    """torch's fused attention. The plain causal triangle needs no mask; all else is one mask that blocks share."""
    if computes_wide(q.dtype, q.device.type):
        return sdpa(q.float(), k.float(), v.float(), scoring, places, once, dropout).to(q.dtype)
    covered = scoring.window is None or scoring.window >= places.k_positions.shape[1]
    # `len`, not truth: torch.compile cannot trace the truth value of a tuple of modules.
    plain = places.aligned and covered and len(scoring.acting("add")) == 0
    mask = None if plain else once(_mask_key(scoring), lambda: _mask(scoring, places, once))
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=plain and scoring.causal,
        scale=scoring.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _mask_key(scoring: Scoring) -> Any:
    return ("mask", scoring.causal, scoring.window, tuple(term.key for term in scoring.acting("add")))


def _mask(scoring: Scoring, places: Places, once: Once) -> Tensor:
    allowed = places.allowed(scoring)
    biases = [term.add(places.q_positions, places.k_positions, once) for term in scoring.acting("add")]
    return sum(biases[1:], biases[0]).masked_fill(~allowed, float("-inf")) if biases else allowed


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("sdpa", frozenset({"add"}), sdpa),
        Kernel("eager", frozenset({"cap", "add"}), eager),
    )
}
"""Every kernel, the fastest first."""


def choose(scoring: Scoring, forced: str | None = None) -> Kernel:
    """The fastest kernel that can run all stages, or the forced one.

    Raises:
        ValueError: no kernel can run all stages, or the forced one is unknown or cannot.
    """
    able = [kernel for kernel in KERNELS.values() if scoring.stages <= kernel.stages]
    if not able:
        raise ValueError(
            f"no kernel can run the stages {', '.join(sorted(scoring.stages))} together; "
            + "; ".join(f"{kernel.name} can run {', '.join(sorted(kernel.stages))}" for kernel in KERNELS.values())
        )
    if forced is None:
        return able[0]
    if forced not in KERNELS:
        raise ValueError(f"{forced!r} is no kernel; there are {', '.join(KERNELS)}")
    missing = scoring.stages - KERNELS[forced].stages
    if missing:
        raise ValueError(
            f"kernel {forced!r} cannot run stage {', '.join(sorted(missing))}; "
            f"these can: {', '.join(kernel.name for kernel in able)}"
        )
    return KERNELS[forced]


@dataclass
class ForwardPass:
    """What one forward pass has computed already: the `Once` of an `Attend`."""

    memo: dict[Any, Any] = field(default_factory=dict, kw_only=True)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]


@dataclass
class Dense(ForwardPass):
    """Attention of a batch to itself, without a cache: the `Attend` of training and evaluation.

    Args:
        places: positions and documents of the batch.
        kernel: a kernel's name to force it; None for the fastest.
        training: dropout is on.
    """

    places: Places
    kernel: str | None = None
    training: bool = False

    def once_for_keys(self, key: Any, make: Callable[[], Any]) -> Any:
        """What is remembered of rotations holds for one set of positions."""
        same = self.places.q_positions is self.places.k_positions
        return self.once(key if same else ("keys", key), make)

    def __call__(self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring) -> Tensor:
        for term in scoring.acting("rotate"):
            q_BHTE = term.rotate(q_BHTE, self.places.q_positions, self.once)
            k_BGTE = term.rotate(k_BGTE, self.places.k_positions, self.once_for_keys)
        dropout = scoring.dropout if self.training else 0.0
        return choose(scoring, self.kernel).run(q_BHTE, k_BGTE, v_BGTE, scoring, self.places, self.once, dropout)
