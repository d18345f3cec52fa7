"""Priors that are taken off the scores."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from isoflop.model.chosen import Chosen
from isoflop.model.prior.weighed import Weighed, WeighedMeasure
from isoflop.model.relation import Relation, combined
from isoflop.model.slots import Setting
from isoflop.model.term import Meeting, Term


class Penalty(Weighed, kind="penalty"):
    """Scores lose gamma G.

    `gamma_is`: `fixed`; `learned`, one number for all heads of the prior; `per_head`. What is learned stays above 0 (a
    softplus) and starts at `gamma`.

    Formula: p = softmax(s - gamma G), gamma >= 0 (eq. 1)
    Paper: Yang et al. 2018, arXiv 1810.10182; Sperber et al. 2018, arXiv 1803.09519
    """

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        chosen = self.chosen(heads, head_width)
        return PenaltyTerm(self.weighed(chosen), chosen, (self.digest, heads))


class PenaltyTerm(Term):
    """See `Penalty`."""

    stages: frozenset[str] = frozenset({"add"})

    def __init__(self, weighed: WeighedMeasure, chosen: Chosen, name: Hashable) -> None:
        super().__init__()
        self.weighed, self.chosen, self.name = weighed, chosen, name
        self.learns = any(True for _ in weighed.parameters())

    @property
    def key(self) -> Hashable:
        # What has no parameters is what it is declared to be, in whichever block.
        return self if self.learns else ("penalty", self.name)

    def add(self, meeting: Meeting) -> Relation:
        return self.chosen.only(combined(torch.neg, self.weighed(meeting)), 0.0, meeting)
