"""Heads that do not look: their weights are a Gaussian of the distance."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field

from isoflop.model.chosen import Chosen
from isoflop.model.prior.measure import NARROWEST, Gaussian
from isoflop.model.relation import Mixture, combined
from isoflop.model.slots import HeadNumber, Prior, Setting
from isoflop.model.term import Meeting, Term
from isoflop.spec import OneOrMany, SpecError


class HardCoded(Prior, kind="hard_coded"):
    """Weights that are a Gaussian density around a place beside the query, whatever queries and keys are.

    They are not normalised: for sigma of 0.5 and more a row sums to nearly 1 inside of a document, and to less where the
    mask or an end cuts the density off. `offset`: of each head, dealt in turn; 0 is the query itself, -1 the token before.
    One head at least must be left to queries and keys, which would have no use without; where all heads of a block are to be so,
    take attention `hard_coded`, which has neither.

    Formula: p_ij = exp(-(j - i - offset)² / (2 sigma²)) / (sigma sqrt(2 pi)) over the allowed keys
    Paper: You, Sun & Iyyer 2020, arXiv 2005.00742
    """

    heads: OneOrMany[HeadNumber] | None = (0,)
    sigma: Annotated[float, Field(gt=NARROWEST)] = 1.0
    offset: OneOrMany[float] = (0.0,)

    @property
    def measure(self) -> Gaussian:
        """The exponent of the density."""
        return Gaussian(sigma=self.sigma, offset=self.offset)

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        return HardCodedTerm(self, self.chosen(heads, head_width))

    def check(self, setting: Setting) -> None:
        super().check(setting)
        chosen = self.chosen(setting.heads.query, setting.heads.width)
        if chosen.all:
            raise SpecError.at(
                "heads",
                f"must leave one of the {chosen.heads} heads to queries and keys, which have no use without; for all heads "
                "take attention = 'hard_coded'",
            )
        self.measure.check(setting, len(chosen.numbers))


class HardCodedTerm(Term):
    """See `HardCoded`."""

    stages: frozenset[str] = frozenset({"mix"})

    def __init__(self, spec: HardCoded, chosen: Chosen) -> None:
        super().__init__()
        self.chosen = chosen
        self.measure = spec.measure.build(chosen)
        self.log_height = -math.log(spec.sigma * math.sqrt(2 * math.pi))

    def mix(self, meeting: Meeting) -> Mixture:
        log_height = self.log_height
        density = combined(lambda held: log_height - held, self.measure(meeting))
        everything = torch.ones(1, 1, 1, 1, device=meeting.q_BHTE.device)
        return Mixture(density, self.chosen.spare(everything, meeting), normalised=False)
