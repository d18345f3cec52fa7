"""Priors that are distributions of their own, mixed into the weights."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from isoflop.model.chosen import Chosen
from isoflop.model.prior.number import SHARE, Source, check_number, number
from isoflop.model.prior.weighed import Weighed
from isoflop.model.relation import Mixture, combined
from isoflop.model.slots import Setting
from isoflop.model.term import Meeting, Term


class Mixing(Weighed, kind="mixture"):
    """A share of the weights is the softmax of -gamma G over the allowed keys, whatever the scores are.

    `beta` is the share. `beta_is`: `fixed`; `learned`, one number for all heads of the prior; `per_head`; `predicted`, a gate
    for each head and query, sigmoid(u q + b). `gamma_is` likewise, without `predicted`. Several mixtures act in their order.

    Formula: p = (1 - beta) softmax(s) + beta softmax(-gamma G) (eq. 6)
    Paper: Xiao & Zhu 2023, arXiv 2311.17633
    """

    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    beta_is: Source = "fixed"

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        return MixtureTerm(self, self.chosen(heads, head_width))

    def check(self, setting: Setting) -> None:
        super().check(setting)
        check_number("beta", self.beta, self.beta_is, SHARE)


class MixtureTerm(Term):
    """See `Mixing`."""

    stages: frozenset[str] = frozenset({"mix"})

    def __init__(self, spec: Mixing, chosen: Chosen) -> None:
        super().__init__()
        self.weighed, self.chosen = spec.weighed(chosen), chosen
        self.beta = number(spec.beta, spec.beta_is, SHARE, chosen)

    def mix(self, meeting: Meeting) -> Mixture:
        logits = combined(torch.neg, self.weighed(meeting))
        return Mixture(logits, self.chosen.spare(self.beta(meeting), meeting))
