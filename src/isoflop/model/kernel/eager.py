"""The definition of attention, which every faster kernel must equal."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.model.places import Part
from isoflop.model.relation import View
from isoflop.model.term import Meeting, Scoring, Told


def eager(meeting: Meeting) -> Tensor:
    """All pairs at once, in fp32 whatever the inputs are; returns o_BHTE.

    s = scale (q k^T + relate);  s = c tanh(s / c);  s = |s| if absolute;  s = s * scale stage + add stage;
    p = softmax(s and the sink, over the allowed keys), 0 where none is;  p = (1 - share) p + share softmax(prior), or
    share exp(prior) where it is not normalised;
    o = p v + values stage.  Query head h reads key/value head h // (H / G).
    """
    scoring, whole = meeting.scoring, meeting.places.whole
    allowed = meeting.once(("allowed", scoring.causal, scoring.window), lambda: meeting.places.allowed(scoring))
    return attend_part(meeting, meeting.told, whole, allowed)


def attend_part(meeting: Meeting, told: Told, part: Part, allowed: Tensor) -> Tensor:
    """The definition for some queries and every key that they can see."""
    view, heads = meeting.places.view(part), meeting.q_BHTE.shape[1]
    q_BHTE = meeting.q_BHTE[:, :, part.queries].float()
    k_BHSE, v_BHSE = (expand(x[:, :, part.keys].float(), heads) for x in (meeting.k_BGSE, meeting.v_BGSE))
    scores = score(q_BHTE @ k_BHSE.transpose(-1, -2) * meeting.scoring.scale, told, meeting.scoring, view)
    weights = softmax(scores, allowed, told.sink_H)
    for mixture in told.mix:
        logits = mixture.prior.at(view).expand(scores.shape)
        prior = softmax(logits, allowed) if mixture.normalised else logits.masked_fill(~allowed, float("-inf")).exp()
        weights = torch.lerp(weights, prior, mixture.share.expand_as(weights))
    weights = F.dropout(weights, meeting.dropout)
    out = weights @ v_BHSE
    for addition in told.values:
        out = out + addition.at(weights, view)
    return out.to(meeting.q_BHTE.dtype)


def expand(x_BGSE: Tensor, heads: int) -> Tensor:
    """Key/value heads, each repeated for the query heads that read it."""
    return x_BGSE.repeat_interleave(heads // x_BGSE.shape[1], dim=1)


def score(scores_BHTS: Tensor, told: Told, scoring: Scoring, view: View) -> Tensor:
    """From scale q k^T to what enters the softmax, before the mask."""
    for relation in told.relate:
        scores_BHTS = scores_BHTS + scoring.scale * relation.at(view)
    if scoring.softcap is not None:
        scores_BHTS = scoring.softcap * torch.tanh(scores_BHTS / scoring.softcap)
    if told.absolute_H is not None:
        scores_BHTS = torch.where(told.absolute_H.view(-1, 1, 1), scores_BHTS.abs(), scores_BHTS)
    for relation in told.scale:
        scores_BHTS = scores_BHTS * relation.at(view)
    for relation in told.add:
        scores_BHTS = scores_BHTS + relation.at(view)
    return scores_BHTS


def softmax(scores_BHTS: Tensor, allowed: Tensor, sink_H: Tensor | None = None) -> Tensor:
    """Weights over the allowed keys; a row without any is 0."""
    # Such a row gets a uniform softmax first and zeros after: -inf throughout would give NaN gradients.
    scores_BHTS = scores_BHTS.masked_fill(~allowed & allowed.any(-1, keepdim=True), float("-inf"))
    if sink_H is not None:
        sink = sink_H.float().view(1, -1, 1, 1).expand(*scores_BHTS.shape[:3], 1)
        return torch.cat([scores_BHTS, sink], dim=-1).softmax(-1)[..., :-1] * allowed
    return scores_BHTS.softmax(-1) * allowed
