"""A place to look where no key is: the attention sink."""

from __future__ import annotations

import torch
from torch import Tensor

from isoflop.model.chosen import Chosen
from isoflop.model.prior.number import ANY, Learned, number
from isoflop.model.slots import Prior, Setting
from isoflop.model.term import Meeting, Term


class Sink(Prior, kind="sink"):
    """A logit beside those of the keys, which takes weight and gives nothing, so that a head may look at little or nothing.

    `logit`: 0 and `fixed` is softmax-off-by-one; `learned` is one number for all heads of the prior, `per_head` one for each.

    Formula: p_ij = exp(s_ij) / (exp(logit) + sum over the allowed keys j' of exp(s_ij'))
    Paper: Xiao et al. 2023, arXiv 2309.17453; OpenAI 2025 (gpt-oss, a logit for each head), arXiv 2508.10925
    """

    logit: float = 0.0
    logit_is: Learned = "per_head"

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        return SinkTerm(self, self.chosen(heads, head_width))


class SinkTerm(Term):
    """See `Sink`."""

    stages: frozenset[str] = frozenset({"sink"})

    def __init__(self, spec: Sink, chosen: Chosen) -> None:
        super().__init__()
        self.chosen = chosen
        self.logit = number(spec.logit, spec.logit_is, ANY, chosen)

    def sink(self, meeting: Meeting) -> Tensor:
        logit_H = self.logit(meeting).flatten().expand(self.chosen.heads)
        if self.chosen.all:
            return logit_H
        return torch.where(self.chosen.mask(meeting), logit_H, float("-inf"))
