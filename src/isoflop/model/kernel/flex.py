"""FlexAttention: what no query sees is skipped block by block, and scores change inside of torch's fused kernel.

It looks numbers up instead of computing them, so it runs what depends on the head and the distance alone. On a GPU torch compiles
it. On a CPU torch has no backward pass for it, and no fusion unless compiled: there it is for comparisons alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from isoflop.model.places import Places
from isoflop.model.relation import Relation
from isoflop.model.term import Meeting, Scoring

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def flex(meeting: Meeting) -> Tensor:
    """See the file; the stages `cap`, `absolute`, `scale`, `add` and `sink`, where relations are relative.

    Raises:
        ValueError: a relation depends on more than the distance, or gradients are wanted on a CPU.
    """
    q, k, v, scoring = meeting.q_BHTE, meeting.k_BGSE, meeting.v_BGSE, meeting.scoring
    if not by_distance(meeting):
        raise ValueError(
            "kernel 'flex' can run what depends on the head and the distance alone; here a number follows from the content "
            "of a query or from where a document ends: take 'banded' or 'chunked'"
        )
    if not q.is_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError("kernel 'flex' has no backward pass on a CPU: take another, or evaluate under torch.no_grad()")
    seen = meeting.once(("flex", scoring.causal, scoring.window), lambda: _blocks(meeting.places, scoring, len(q)))
    out, aux = _attention(q)(
        q,
        k,
        v,
        score_mod=_scored(meeting),
        block_mask=seen,
        scale=scoring.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    sink_H = meeting.told.sink_H
    if sink_H is None:
        return out
    # Weights that a sink has taken from all keys alike: exp(lse) / (exp(lse) + exp(sink)).
    return (out * torch.sigmoid(aux.lse - sink_H.float().view(-1, 1)).unsqueeze(-1)).to(out.dtype)


def by_distance(meeting: Meeting) -> bool:
    """Whether all that is told of pairs follows from the head and the distance."""
    return all(relation.relative for relation in (*meeting.told.scale, *meeting.told.add))


def _attention(q: Tensor) -> Callable[..., Any]:
    return _fused() if q.is_cuda and not torch.compiler.is_compiling() else _plain


@cache
def _fused() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def _plain(*args: Any, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return flex_attention(*args, **settings)


def _blocks(places: Places, scoring: Scoring, batch: int) -> BlockMask | None:
    """Which blocks of pairs hold one that may meet; None where all do."""
    window, causal, told = scoring.window, scoring.causal, places.q_documents is not None
    if not causal and window is None and not told:
        return None
    alike = max(len(places.q_positions), len(places.k_positions)) == 1 and not told
    q_BT, k_BS = places.q_positions.expand(batch, -1), places.k_positions.expand(batch, -1)
    # Where all is one document, any numbers do.
    q_documents, k_documents = (
        positions if documents is None else documents.expand(batch, -1)
        for positions, documents in ((q_BT, places.q_documents), (k_BS, places.k_documents))
    )

    def may_meet(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        q, k = q_BT[b, i], k_BS[b, j]
        seen = k <= q if causal else k == k  # True, as a tensor
        if window is not None:
            seen = seen & ((q - k).abs() < window)
        if told:
            seen = seen & (q_documents[b, i] == k_documents[b, j])
        return seen

    return create_block_mask(
        may_meet,
        None if alike else batch,
        None,
        q_BT.shape[1],
        k_BS.shape[1],
        device=q_BT.device,
        _compile=q_BT.is_cuda,
    )


def _scored(meeting: Meeting) -> ScoreMod | None:
    """From scale q k^T of a pair to what enters the softmax; None where that is all."""
    scoring, told, places = meeting.scoring, meeting.told, meeting.places
    cap, absolute_H = scoring.softcap, told.absolute_H
    lowest, highest = meeting.once(("span", scoring.causal, scoring.window), lambda: places.span(scoring))
    batch, heads = meeting.q_BHTE.shape[:2]
    q_BT, k_BS = places.q_positions.expand(batch, -1), places.k_positions.expand(batch, -1)
    factor_HN, bias_HN = (
        _table(said, by, heads, lowest, highest, q_BT.device)
        for said, by in ((told.scale, torch.mul), (told.add, torch.add))
    )
    if cap is None and absolute_H is None and factor_HN is None and bias_HN is None:
        return None

    def scored(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        # The mask hides pairs beyond the tables, whichever number they get.
        offset = (k_BS[b, j] - q_BT[b, i]).clamp(lowest, highest) - lowest
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if absolute_H is not None:
            score = torch.where(absolute_H[h], score.abs(), score)
        if factor_HN is not None:
            score = score * factor_HN[h, offset]
        return score if bias_HN is None else score + bias_HN[h, offset]

    return scored


def _table(
    said: tuple[Relation, ...],
    by: Callable[[Tensor, Tensor], Tensor],
    heads: int,
    lowest: int,
    highest: int,
    device: torch.device,
) -> Tensor | None:
    """What relations say together of each head and offset, (H, N)."""
    offsets_1N = torch.arange(lowest, highest + 1, device=device)[None]
    tables = [relation.by_offset(offsets_1N).expand(1, heads, 1, offsets_1N.shape[1])[0, :, 0] for relation in said]
    return reduce(by, tables).contiguous() if tables else None
