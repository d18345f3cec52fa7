"""torch's fused attention, with one mask for all that is neither causal triangle nor key."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.model.linear import computes_wide
from isoflop.model.term import Meeting, Scoring


def sdpa(meeting: Meeting) -> Tensor:
    """The plain causal triangle, and all pairs of one document, need no mask; all else is one, which blocks share where it is
    fixed."""
    q, k, v, scoring = meeting.q_BHTE, meeting.k_BGSE, meeting.v_BGSE, meeting.scoring
    if computes_wide(q.dtype, q.device.type):
        wide = {"q_BHTE": q.float(), "k_BGSE": k.float(), "v_BGSE": v.float()}
        return sdpa(replace(meeting, **wide)).to(q.dtype)
    covered = scoring.window is None or scoring.window >= k.shape[2]
    # `len`, not truth: torch.compile cannot trace the truth value of a tuple of modules.
    triangle = meeting.places.aligned and not meeting.places.before  # theirs has its corner at the first key
    placed = triangle or (not scoring.causal and meeting.places.q_documents is None)
    plain = placed and covered and len(scoring.acting("add")) == 0
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if plain else _mask(meeting),
        dropout_p=meeting.dropout,
        is_causal=plain and scoring.causal,
        scale=scoring.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _mask(meeting: Meeting) -> Tensor:
    relations = meeting.told.add
    if all(relation.fixed for relation in relations):
        return meeting.once(_key(meeting.scoring), lambda: _filled(meeting, relations))
    return _filled(meeting, relations)


def _key(scoring: Scoring) -> Any:
    return ("mask", scoring.causal, scoring.window, tuple(term.key for term in scoring.acting("add")))


def _filled(meeting: Meeting, relations: tuple[Any, ...]) -> Tensor:
    allowed, view = meeting.places.allowed(meeting.scoring), meeting.places.view(meeting.places.whole)
    if not relations:
        return allowed
    bias = functools.reduce(torch.add, (relation.at(view) for relation in relations))
    return bias.masked_fill(~allowed, float("-inf")).to(meeting.q_BHTE.dtype)
