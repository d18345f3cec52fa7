"""Parameters and FLOPs of any architecture, counted on the real model without allocating it.

The model's own forward runs on meta tensors with the kernel that is the definition of attention, so every matmul is seen
and a kind needs no cost formula. Attention calls are recorded as they pass, which gives the sites and their caches.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isoflop.model import Architecture, Part, Transformer, parts
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.term import Scoring
from isoflop.spec import SpecError

COMPONENTS = {
    "embed": "embedding",
    "position": "position",
    "q": "attention",
    "k": "attention",
    "v": "attention",
    "o": "attention",
    "prior": "attention",
    "prior_map": "attention",
    "position_bias": "attention",
    "position_map": "attention",
    "ffn_in": "ffn",
    "ffn_gate": "ffn",
    "ffn_out": "ffn",
    "gain": "norm",
    "head": "head",
}
"""The component that a role is counted under; a role of a user's own is a component of its own."""


@dataclass(frozen=True)
class Cost:
    """What an architecture costs at a sequence length.

    FLOPs count a multiply and an add as two, matmuls only, per token. `causal` counts the key and query pairs that the mask
    allows, `full` all of them, as a kernel without causal skipping computes. Training is three times forward: each
    matmul has two in its backward. Look-ups are free, a tied head is not.

    Attributes:
        length: tokens of a sequence, which the attention's part depends on.
        parameters: each tensor counted once.
        components: parameters by embedding, position, attention, ffn, norm, head.
        forward_flops_per_token, forward_flops_per_token_full: FLOPs / token.
        kv_elements_per_token: numbers that a KV cache keeps for one token, over all sites.
        sites: evaluations of attention in one forward.
    """

    length: int
    parameters: int
    components: dict[str, int]
    forward_flops_per_token: float
    forward_flops_per_token_full: float
    kv_elements_per_token: int
    sites: int

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward, causal pairs only."""
        return 3 * self.forward_flops_per_token

    @property
    def non_embedding(self) -> int:
        """Parameters without the tables of tokens and positions (Kaplan et al. 2020)."""
        return self.parameters - self.components.get("embedding", 0) - self.components.get("position", 0)

    def kv_bytes_per_token(self, bytes_per_element: int = 2) -> int:
        """Bytes a KV cache grows by with each token; 2 bytes an element is bf16."""
        return self.kv_elements_per_token * bytes_per_element

    def dump(self) -> dict[str, Any]:
        """Plain data for run files, derived figures included."""
        return {
            **asdict(self),
            "non_embedding": self.non_embedding,
            "training_flops_per_token": self.training_flops_per_token,
            "kv_bytes_per_token": self.kv_bytes_per_token(),
        }


def count_parameters(architecture: Architecture) -> int:
    """Parameters of an architecture; nothing is allocated."""
    with torch.device("meta"):
        model = Transformer(architecture)
    return sum(parameter.numel() for parameter in model.parameters())


def price(architecture: Architecture, length: int) -> Cost:
    """The cost of an architecture at a sequence length.

    Raises:
        SpecError: the length is below 1, or beyond the positions that the architecture has.
    """
    if length < 1:
        raise SpecError(f"length must be at least 1, came {length}")
    architecture.check_length(length)
    with torch.device("meta"):
        model = Transformer(architecture, kernel="eager").eval()
        tokens_BT = torch.zeros(1, length, dtype=torch.long)
        positions_BT = torch.arange(length)[None]
    recorder = _Recorder(Dense(Places(positions_BT, positions_BT, consecutive=True), "eager"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.nn.functional.linear(model.encode(tokens_BT, positions_BT, recorder), model.head_weight)
    full = counter.get_total_flops()
    causal = full - sum(site.flops(length * length) - site.flops(site.pairs(length)) for site in recorder.sites)
    return Cost(
        length=length,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        components=_components(list(parts(model))),
        forward_flops_per_token=causal / length,
        forward_flops_per_token_full=full / length,
        kv_elements_per_token=sum(site.kv_elements for site in recorder.sites),
        sites=len(recorder.sites),
    )


def _components(all_parts: list[Part]) -> dict[str, int]:
    """Parameters by component; a bias counts with the matrix or the gain of its own module."""
    owners = {_module(part): COMPONENTS.get(part.role, part.role) for part in all_parts if part.role != "bias"}
    components: Counter[str] = Counter()
    for part in all_parts:
        component = COMPONENTS.get(part.role, part.role)
        components[owners.get(_module(part), component) if part.role == "bias" else component] += math.prod(part.shape)
    return dict(components)


def _module(part: Part) -> str:
    return part.parameter.rpartition(".")[0]


@dataclass(frozen=True)
class _Site:
    """One evaluation of attention."""

    heads: int
    key_width: int
    value_width: int
    kv_elements: int
    scoring: Scoring

    def flops(self, pairs: int) -> int:
        """q kᵀ and p v over so many query and key pairs."""
        return 2 * pairs * self.heads * (self.key_width + self.value_width)

    def pairs(self, length: int) -> int:
        """Query and key pairs that the mask allows in one sequence."""
        reach = min(self.scoring.window or length, length)
        before = reach * (reach - 1) // 2 + (length - reach + 1) * reach  # sum over queries of min(i + 1, reach)
        return before if self.scoring.causal else 2 * before - length


@dataclass
class _Recorder:
    """An `Attend` that notes every site on its way to another."""

    inner: Dense
    sites: list[_Site] = field(default_factory=list)

    def __call__(self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring) -> Tensor:
        kv_elements = k_BGTE.shape[1] * (k_BGTE.shape[-1] + v_BGTE.shape[-1])
        self.sites.append(_Site(q_BHTE.shape[1], k_BGTE.shape[-1], v_BGTE.shape[-1], kv_elements, scoring))
        return self.inner(q_BHTE, k_BGTE, v_BGTE, scoring)
