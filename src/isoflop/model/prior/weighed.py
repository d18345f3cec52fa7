"""What penalty, mixture and multiplicative priors have in common: a measure and its weight gamma."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from isoflop.model.chosen import Chosen
from isoflop.model.prior.number import POSITIVE, Learned, check_number, number
from isoflop.model.relation import Relation, combined
from isoflop.model.slots import Measure, Prior, Setting
from isoflop.model.term import Meeting
from isoflop.spec import SpecError


class Weighed(Prior):
    """A prior that is made of gamma G."""

    measure: Measure = "distance"  # type: ignore[assignment]
    gamma: Annotated[float, Field(ge=0)] = 1.0
    gamma_is: Learned = "fixed"

    def weighed(self, chosen: Chosen) -> WeighedMeasure:
        """The module of gamma G."""
        return WeighedMeasure(self, chosen)

    def check(self, setting: Setting) -> None:
        super().check(setting)
        check_number("gamma", self.gamma, self.gamma_is, POSITIVE)
        try:
            self.measure.check(setting, len(self.chosen(setting.heads.query, setting.heads.width).numbers))
        except SpecError as error:
            raise error.under("measure") from None


class WeighedMeasure(nn.Module):
    """meeting -> Relation: gamma G for the chosen heads."""

    def __init__(self, spec: Weighed, chosen: Chosen) -> None:
        super().__init__()
        self.measure = spec.measure.build(chosen)
        self.gamma = number(spec.gamma, spec.gamma_is, POSITIVE, chosen)

    def forward(self, meeting: Meeting) -> Relation:
        return combined(torch.mul, self.gamma.relation(meeting), self.measure(meeting))
