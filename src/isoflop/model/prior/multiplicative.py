"""Priors that scores or weights are multiplied by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isoflop.model.chosen import Chosen
from isoflop.model.prior.weighed import Weighed
from isoflop.model.relation import Relation, combined, given_by_query
from isoflop.model.slots import Setting
from isoflop.model.term import Meeting, Term
from isoflop.spec import SpecError

ROWS = 128
"""Queries at a time in the sum over a row."""


class Multiplicative(Weighed, kind="multiplicative"):
    """Scores or weights times G', which is 1 where nothing is held against a key.

    `on`: `logits` as the equation is printed, where G' near 0 makes a score 0 and so *raises* a negative one; `absolute`
    multiplies their absolute values, which attracts what is most unlike; `probabilities` multiplies the weights before they
    are normalised, softmax(s + log G'). `decay`: `exp` is G' = exp(-gamma G); `softmax` normalises it over the keys that the
    query may see, so that a row sums to 1. `gamma_is`: `fixed`; `learned`, one number for all heads; `per_head`.

    Formula: p = softmax(s G') (eq. 7)
    Paper: Kim, El-Khamy & Lee 2020, T-GSA, arXiv 1910.06762
    """

    on: Literal["logits", "absolute", "probabilities"] = "logits"
    decay: Literal["exp", "softmax"] = "exp"

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        return MultiplicativeTerm(self, self.chosen(heads, head_width))

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.on == "probabilities" and self.decay == "softmax":
            raise SpecError.at(
                "decay",
                "'softmax' divides a row by one number, which weights that are normalised after it do not show; take 'exp'",
            )


class MultiplicativeTerm(Term):
    """See `Multiplicative`."""

    def __init__(self, spec: Multiplicative, chosen: Chosen) -> None:
        super().__init__()
        self.stages = STAGES[spec.on]
        self.weighed, self.chosen, self.log_decay = spec.weighed(chosen), chosen, DECAYS[spec.decay]

    def absolute(self, meeting: Meeting) -> Tensor:
        return self.chosen.mask(meeting)

    def scale(self, meeting: Meeting) -> Relation:
        return self.chosen.only(combined(torch.exp, self._log(meeting)), 1.0, meeting)

    def add(self, meeting: Meeting) -> Relation:
        return self.chosen.only(self._log(meeting), 0.0, meeting)

    def _log(self, meeting: Meeting) -> Relation:
        return self.log_decay(self.weighed(meeting), meeting)


def exponential(weighed: Relation, meeting: Meeting) -> Relation:
    """log exp(-gamma G)."""
    return combined(torch.neg, weighed)


def normalised(weighed: Relation, meeting: Meeting) -> Relation:
    """log softmax(-gamma G) over the keys that a query may see."""
    total_BHT1 = _log_sums(weighed, meeting)
    # What a query may not see can lie above 0, as far as it likes, and infinity times the 0 of the mask is no number.
    return combined(lambda held, total: (-held - total).clamp(max=0), weighed, given_by_query(total_BHT1))


@torch.compiler.disable()  # a loop over the length, which compilation would unroll and specialise
def _log_sums(weighed: Relation, meeting: Meeting) -> Tensor:
    length = meeting.q_BHTE.shape[2]
    return torch.cat([_log_sum(weighed, meeting, q0, min(q0 + ROWS, length)) for q0 in range(0, length, ROWS)], dim=2)


def _log_sum(weighed: Relation, meeting: Meeting, q0: int, q1: int) -> Tensor:
    """log of the sum of exp(-gamma G) over the allowed keys of some queries; 0 for a query without any."""
    part = meeting.places.reach(meeting.scoring, q0, q1)
    held = weighed.part(part.queries, part.keys)
    allowed = meeting.places.allowed(meeting.scoring, part)
    some = allowed.any(-1, keepdim=True)

    def run() -> Tensor:
        logits = -held.at(meeting.places.view(part))
        return logits.masked_fill(~allowed & some, float("-inf")).logsumexp(-1, keepdim=True).masked_fill(~some, 0.0)

    return checkpoint(run, use_reentrant=False) if held.requires_grad else run()


STAGES = {
    "logits": frozenset({"scale"}),
    "absolute": frozenset({"absolute", "scale"}),
    "probabilities": frozenset({"add"}),
}
DECAYS: dict[str, Callable[[Relation, Meeting], Relation]] = {"exp": exponential, "softmax": normalised}
