"""Relative sinusoids that queries meet as they meet keys."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from isoflop.model.linear import Roles
from isoflop.model.position.band import by_query, met
from isoflop.model.position.frequencies import Base, angles
from isoflop.model.relation import Relation, Tensors, View
from isoflop.model.slots import Position, Setting
from isoflop.model.term import Meeting, Term
from isoflop.spec import SpecError


class TransformerXL(Position, kind="transformer_xl"):
    """Scores take a second part: what a query says to a sinusoid of its distance to the key; biases stand in for the query.

    u and v are learned for each head, W_R for each block; R is a vector of sines, then cosines, as wide as the model.
    `blocks_share`: one u and v for all blocks, as in the paper, or one for each. The paper's memory of the
    segment before is `attention.memory`.

    Formula: s_ij = scale ((q_i + u) k_jᵀ + (q_i + v) (W_R R_{i-j})ᵀ), R_n = [sin(n θ), cos(n θ)], θ_f = base^(-2f/D)
    Paper: Dai et al. 2019, arXiv 1901.02860
    """

    stages: ClassVar[frozenset[str]] = frozenset({"relate"})
    base: Base = 10000.0
    blocks_share: bool = True

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        def make() -> Biases:
            return Biases(heads, head_width)

        biases = setting.share((self, heads, head_width), make) if self.blocks_share else make()
        return RelativeSinusoids(setting.architecture.width, self.base, biases)

    def check(self, setting: Setting) -> None:
        width = setting.architecture.width
        if width % 2:
            raise SpecError(f"sinusoids come in pairs: width must be even, came {width}")


class Biases(nn.Module):
    """u and v, which stand beside the query where it meets keys and where it meets distances."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.u, self.v = (nn.Parameter(torch.empty(heads, head_width)) for _ in range(2))
        self.roles: Roles = dict.fromkeys(("u", "v"), "position_bias")


class RelativeSinusoids(Term):
    """See `TransformerXL`."""

    stages: frozenset[str] = frozenset({"relate"})

    def __init__(self, width: int, base: float, biases: Biases) -> None:
        super().__init__()
        self.width, self.base, self.biases = width, base, biases
        self.map = nn.Parameter(torch.empty(biases.u.numel(), width))
        self.roles: Roles = {"map": "position_map"}

    def relate(self, meeting: Meeting) -> Relation:
        scoring = meeting.scoring
        lowest, highest = meeting.once(("span", scoring.causal, scoring.window), lambda: meeting.places.span(scoring))
        rows_BHTE = meeting.q_BHTE.float() + self.biases.v.float().unsqueeze(1)
        columns_BHS1 = _by_head(meeting.k_BGSE.float(), self.biases.u.float())
        met_HNE = self._sinusoids(lowest, highest, meeting.q_BHTE.device)
        return Relation(partial(_related, lowest=lowest), (rows_BHTE,), (columns_BHS1,), (met_HNE,))

    def _sinusoids(self, lowest: int, highest: int, device: torch.device) -> Tensor:
        """W_R R for the offsets of keys from lowest to highest, (H, N, E)."""
        distances_1N = -torch.arange(lowest, highest + 1, device=device)[None]
        cos, sin = angles(distances_1N, self.width, self.base)
        met_NW = torch.cat([sin, cos], dim=-1)[0] @ self.map.float().t()
        return met_NW.unflatten(-1, self.biases.u.shape).transpose(0, 1)


def _by_head(k_BGSE: Tensor, u_HE: Tensor) -> Tensor:
    """u_h k of the key/value head that query head h reads, (B, H, S, 1)."""
    u_GRE = u_HE.unflatten(0, (k_BGSE.shape[1], -1))
    return (k_BGSE @ u_GRE.mT).transpose(2, 3).flatten(1, 2).unsqueeze(-1)


def _related(rows: Tensors, columns: Tensors, shared: Tensors, view: View, *, lowest: int) -> Tensor:
    (rows_BHTE,), (columns_BHS1,), (table_HNE,) = rows, columns, shared
    here = met(view, lowest, table_HNE.shape[1])
    return by_query(rows_BHTE @ table_HNE[:, here].mT, view, lowest + here.start) + columns_BHS1.mT
