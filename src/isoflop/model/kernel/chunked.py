"""The definition, some queries at a time: memory O(T) instead of O(T x S), for any stage."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isoflop.model.kernel.eager import attend_part
from isoflop.model.places import Part
from isoflop.model.term import Meeting, Told

ROWS = 128
"""Queries at a time."""


def chunked(meeting: Meeting) -> Tensor:
    """Chunks of queries against the keys in their reach; their weights are computed again in the backward pass."""
    told, places = meeting.told, meeting.places
    length = meeting.q_BHTE.shape[2]
    parts = [places.reach(meeting.scoring, q0, min(q0 + ROWS, length)) for q0 in range(0, length, ROWS)]
    return torch.cat([_chunk(meeting, told, part) for part in parts], dim=2)


def _chunk(meeting: Meeting, told: Told, part: Part) -> Tensor:
    def run() -> Tensor:
        return attend_part(meeting, told.part(part), part, meeting.places.allowed(meeting.scoring, part))

    return checkpoint(run, use_reentrant=False) if torch.is_grad_enabled() else run()
