"""Parameters and FLOPs of any architecture, counted on the real model without allocating it.

The model's own forward runs on meta tensors with the kernel that is the definition of attention, so every matmul is seen
and a kind needs no cost formula. Attention calls are recorded as they pass, which gives the sites and their caches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isoflop.model import Architecture, Part, Past, Source, Transformer, parts
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.slots import Attend, Expand, KeysValues, as_kept
from isoflop.model.term import Scoring
from isoflop.spec import SpecError

COMPONENTS = {
    "embed": "embedding",
    "embed_map": "embedding",
    "token_type": "embedding",
    "position": "position",
    "q": "attention",
    "k": "attention",
    "v": "attention",
    "o": "attention",
    "q_latent": "attention",
    "kv_latent": "attention",
    "k_shared": "attention",
    "gate": "attention",
    "value_share": "attention",
    "prior": "attention",
    "prior_map": "attention",
    "position_bias": "attention",
    "position_map": "attention",
    "ffn_in": "ffn",
    "ffn_gate": "ffn",
    "ffn_out": "ffn",
    "gain": "norm",
    "head": "head",
    "head_bias": "head",
    "head_map": "head",
}
"""The component that a role is counted under; a role of a user's own is a component of its own."""


@dataclass(frozen=True)
class Cost:
    """What an architecture costs at a sequence length; in an encoder-decoder, at a source and a target of this length.

    FLOPs count a multiply and an add as two, matmuls only, per token. `causal` counts the key and query pairs that the mask
    allows, `full` all of them, as a kernel without causal skipping computes. Training is three times forward: each
    matmul has two in its backward, but for keys and values of a memory, whose stream gets no gradient. Look-ups are free, a
    tied head is not. A memory is full, as it is for all but the first segments of a text.

    Attributes:
        length: tokens of a sequence, which the attention's part depends on.
        parameters: each tensor counted once.
        components: parameters by embedding, position, attention, ffn, norm, head.
        forward_flops_per_token, forward_flops_per_token_full: FLOPs / token.
        kv_elements_per_token: numbers that a KV cache keeps for one token, over all sites; 0 in an encoder, which keeps none.
        kv_elements_per_source_token: the same for one token of the source of an encoder-decoder.
        sites: evaluations of attention in one forward.
        memory_flops_per_token: those of the forward that make keys and values of a memory.
    """

    length: int
    parameters: int
    components: dict[str, int]
    forward_flops_per_token: float
    forward_flops_per_token_full: float
    kv_elements_per_token: int
    sites: int
    kv_elements_per_source_token: int = 0
    memory_flops_per_token: float = 0.0

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward, causal pairs only."""
        return 3 * self.forward_flops_per_token - self.memory_flops_per_token

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
    for side in architecture.sides:
        side.check_length(length)
    with torch.device("meta"):
        model = Transformer(architecture, kernel="eager").eval()
        tokens_BT = torch.zeros(1, length, dtype=torch.long)
        positions_BT = torch.arange(length)[None]
    places = Places(positions_BT, positions_BT, consecutive=True)
    sites: list[_Site] = []
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        source = None if model.encoder is None else Source(tokens_BT)
        memory = model.read(source, _Recorder(Dense(places, "eager"), sites, cached=None))
        inner = Dense(places, "eager", memory=memory, past=_FullPast())
        recorder = _Recorder(inner, sites, "token" if architecture.causal else None)
        model.logits(model.encode(tokens_BT, positions_BT, recorder))
    full = counter.get_total_flops()
    causal = full - sum(site.flops(length * site.keys) - site.flops(site.pairs(length)) for site in sites)
    return Cost(
        length=length,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        components=_components(list(parts(model))),
        forward_flops_per_token=causal / length,
        forward_flops_per_token_full=full / length,
        kv_elements_per_token=sum(site.kv_elements for site in sites if site.cached == "token"),
        sites=len(sites),
        kv_elements_per_source_token=sum(site.kv_elements for site in sites if site.cached == "source"),
        memory_flops_per_token=sum(2 * site.memory * architecture.width * site.kv_elements for site in sites) / length,
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


Cached = Literal["token", "source"] | None
"""Whether generation keeps the keys and values of a site, for each token or for each token of the source."""


@dataclass(frozen=True)
class _Site:
    """One evaluation of attention."""

    heads: int
    key_width: int
    value_width: int
    kv_elements: int
    scoring: Scoring
    cached: Cached
    keys: int
    memory: int

    def flops(self, pairs: int) -> int:
        """q kᵀ and p v over so many query and key pairs."""
        return 2 * pairs * self.heads * (self.key_width + self.value_width)

    def pairs(self, length: int) -> int:
        """Query and key pairs that the mask allows in one sequence."""
        window = self.scoring.window or self.keys
        before = _seen(self.keys, window) - _seen(self.memory, window)
        return before if self.scoring.causal else 2 * before - length


def _seen(length: int, window: int) -> int:
    """Sum over the queries of a text of the keys up to each that it sees: min(i + 1, window)."""
    reach = min(window, length)
    return reach * (reach - 1) // 2 + (length - reach + 1) * reach


class _FullPast(Past):
    """As many positions as a memory holds, at every site."""

    def stream(self, number: int, x_BTD: Tensor, count: int) -> Tensor:
        return x_BTD.new_zeros(len(x_BTD), count, x_BTD.shape[-1])


@dataclass
class _Recorder:
    """An `Attend` that notes every site on its way to another."""

    inner: Dense
    sites: list[_Site]
    cached: Cached

    def __call__(
        self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring, expand: Expand = as_kept
    ) -> Tensor:
        return self.inner(q_BHTE, k_BGTE, v_BGTE, scoring, self._noting(q_BHTE, scoring, expand, self.cached))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        return self.inner.once(key, make)

    def recall(self, x_BTD: Tensor, memory: int) -> tuple[Tensor, Attend]:
        past_BMD, beside = self.inner.recall(x_BTD, memory)
        assert isinstance(beside, Dense)
        return past_BMD, replace(self, inner=beside)

    def across(self, q_BHTE: Tensor, keys_values: KeysValues, scoring: Scoring, expand: Expand = as_kept) -> Tensor:
        return self.inner.across(q_BHTE, keys_values, scoring, self._noting(q_BHTE, scoring, expand, "source"))

    def _noting(self, q_BHTE: Tensor, scoring: Scoring, expand: Expand, cached: Cached) -> Expand:
        """`expand`, which notes what is kept and what it makes of that."""

        def noting(k_BGSE: Tensor, v_BGSE: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = expand(k_BGSE, v_BGSE)
            kept = sum(x.shape[1] * x.shape[-1] for x in (k_BGSE, v_BGSE))
            shape = q_BHTE.shape[1], keys.shape[-1], values.shape[-1]
            before = self.inner.places.before
            self.sites.append(_Site(*shape, kept, scoring, cached, keys.shape[2], before))
            return keys, values

        return noting
