"""A contiguous KV cache, and the `Attend` that reads and writes it.

A cache has one slot for each *site*: each evaluation of attention in a forward pass, numbered in order. A sublayer that is
evaluated twice has two. Keys are stored after rotation by their own position, and what a site makes of its keys and values when
queries meet them (see `Expand`) is made anew each time. Attention to an encoder has sites of its own, whose keys and values are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isoflop.model.attend import Dense, ForwardPass
from isoflop.model.kernel import choose
from isoflop.model.memory import Memory
from isoflop.model.places import Places
from isoflop.model.slots import Attend, Expand, KeysValues, as_kept
from isoflop.model.term import Meeting, Scoring


class ContiguousCache:
    """Keys, values, positions and documents of `batch` rows with room for `capacity` tokens each.

    `memory` is what an encoder made of the source of every row, in a model that has one.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device, memory: Memory | None = None) -> None:
        self.capacity, self.length, self.memory = capacity, 0, memory
        self.of_source: list[tuple[Tensor, Tensor]] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.positions_BS = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.documents_BS = torch.zeros(batch, capacity, dtype=torch.long, device=device)

    def append(self, site: int, k_BGTE: Tensor, v_BGTE: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values of a site behind the old; returns all of the site's, (B, G, S, E)."""
        if site == len(self.keys):
            # Zeros, not empty memory: a NaN in a slot that the mask hides would still poison the product.
            self.keys.append(k_BGTE.new_zeros(*k_BGTE.shape[:2], self.capacity, k_BGTE.shape[-1]))
            self.values.append(v_BGTE.new_zeros(*v_BGTE.shape[:2], self.capacity, v_BGTE.shape[-1]))
        end = self.length + k_BGTE.shape[2]
        self.keys[site][:, :, self.length : end] = k_BGTE
        self.values[site][:, :, self.length : end] = v_BGTE
        return self.keys[site][:, :, :end], self.values[site][:, :, :end]

    def source(self, site: int, keys_values: KeysValues) -> tuple[Tensor, Tensor]:
        """Keys and values of a site of attention to the encoder, (B, G, S, E)."""
        assert self.memory is not None, "a model with cross-attention checks that it has a source"
        if site == len(self.of_source):
            self.of_source.append(keys_values(self.memory.states_BSD))
        return self.of_source[site]

    def place(self, positions_BT: Tensor, documents_BT: Tensor) -> Places:
        """Store where new tokens stand; returns where they and all keys stand."""
        end = self.length + positions_BT.shape[1]
        if end > self.capacity:
            raise ValueError(f"the cache has room for {self.capacity} tokens a row, {end} are needed")
        self.positions_BS[:, self.length : end] = positions_BT
        self.documents_BS[:, self.length : end] = documents_BT
        return Places(positions_BT, self.positions_BS[:, :end], documents_BT, self.documents_BS[:, :end])

    def advance(self, tokens: int) -> None:
        """Count new tokens as stored, once every site has them."""
        self.length += tokens


@dataclass
class Cached(ForwardPass):
    """Attention of new tokens to all that the cache holds: the `Attend` of generation, one for each forward pass."""

    cache: ContiguousCache
    places: Places
    kernel: str | None = None
    site: int = 0
    source_site: int = 0

    def __call__(
        self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring, expand: Expand = as_kept
    ) -> Tensor:
        content_BHTE = q_BHTE
        for term in scoring.acting("rotate"):
            q_BHTE = term.rotate(q_BHTE, self.places.q_positions, self.once)
            k_BGTE = term.rotate(k_BGTE, self.places.q_positions, self.once)
        k_BGSE, v_BGSE = expand(*self.cache.append(self.site, k_BGTE, v_BGTE))
        self.site += 1
        meeting = Meeting(content_BHTE, q_BHTE, k_BGSE, v_BGSE, scoring, self.places, self.once)
        return choose(meeting, self.kernel).run(meeting)

    def recall(self, x_BTD: Tensor, memory: int) -> tuple[Tensor, Attend]:
        """Nothing: what is in reach of a new token is in the cache, however the text before it was cut."""
        return x_BTD[:, :0], self

    def across(self, q_BHTE: Tensor, keys_values: KeysValues, scoring: Scoring, expand: Expand = as_kept) -> Tensor:
        k_BGSE, v_BGSE = self.cache.source(self.source_site, keys_values)
        self.source_site += 1
        return self._to_source()(q_BHTE, k_BGSE, v_BGSE, scoring, expand)

    def _to_source(self) -> Dense:
        """Other places, and so other things to remember; nothing there changes from token to token."""
        memory = self.cache.memory
        assert memory is not None
        return self.once("to source", lambda: Dense(memory.seen_from(self.places), self.kernel))
