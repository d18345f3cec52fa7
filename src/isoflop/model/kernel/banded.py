"""Blocks of queries against the band of keys in their reach: O(window x length) time, O(length) memory, learned biases.

torch's CPU attention goes through a matrix of all pairs where a mask is given, and is many times slower still where a bias
needs a gradient. This is attention as FlashAttention does it in the backward pass (Dao et al. 2022, arXiv 2205.14135):
only what each row was normalised by is kept, and weights are computed again block by block.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoflop.model.kernel.eager import score
from isoflop.model.linear import computes_wide
from isoflop.model.places import Part, Places
from isoflop.model.relation import Addition, View
from isoflop.model.term import Meeting, Scoring, Told

ROWS = 64
"""Queries at a time. Fewer waste fewer pairs at the edges of the band, more have less overhead."""


PAIRS = 2**19
"""Scores at a time, as far as one sequence of the batch allows: some megabytes, which a processor's cache holds."""


def banded(meeting: Meeting) -> Tensor:
    """See the file; any stage but `mix`."""
    told, scoring, places = meeting.told, meeting.scoring, meeting.places
    dtype = meeting.q_BHTE.dtype
    wide = torch.promote_types(dtype, torch.float32) if computes_wide(dtype, meeting.q_BHTE.device.type) else dtype
    q, k, v = (x.to(wide) for x in (meeting.q_BHTE, meeting.k_BGSE, meeting.v_BGSE))
    batch, heads = meeting.q_BHTE.shape[:2]

    def run(q: Tensor, k: Tensor, v: Tensor, told: Told, places: Places) -> Tensor:
        drop = _Drop.draw(meeting.dropout)
        return _Banded.apply(q, k, v, told.sink_H, told, scoring, places, drop, *told.tensors)

    count = max(1, PAIRS // (heads * ROWS * max(part.k1 - part.k0 for part in _parts(places, scoring))))
    if count >= batch:
        return run(q, k, v, told, places).to(dtype)
    said, stand = told.split(count, batch), places.split(count, batch)
    pieces = zip(q.split(count), k.split(count), v.split(count), said, stand, strict=True)
    return torch.cat([run(*piece) for piece in pieces]).to(dtype)


class _Banded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink_H: Tensor | None,
        told: Told,
        scoring: Scoring,
        places: Places,
        drop: _Drop,
        *tensors: Tensor,
    ) -> Tensor:
        out, norms = q.new_empty(*q.shape[:3], v.shape[-1]), []
        for part in _parts(places, scoring):
            scores = score(_product(q, k, part, scoring.scale), told.part(part), scoring, places.view(part))
            _hide(scores, places, scoring, part)
            p, norm = _powers(scores, sink_H)
            norms.append(norm)
            p = drop.thin(p, part)
            read = _by_query(_by_group(p, v.shape[1]) @ v[:, :, part.keys].float(), q.shape[1])
            for addition in told.values:
                read += addition.at(p, places.view(part))
            out[:, :, part.queries] = read
        ctx.save_for_backward(q, k, v, sink_H, torch.cat(norms[::-1], dim=2), *tensors)
        ctx.given = told, scoring, places, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides the names of arguments
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Any, ...]:
        q, k, v, sink_H, norms_BHT2, *tensors = ctx.saved_tensors
        told, scoring, places, drop = ctx.given
        gradient = grad_outputs[0]
        wanted = ctx.needs_input_grad[8:]
        dq, dk, dv = (
            torch.empty_like(q),
            torch.zeros_like(k, dtype=torch.float32),
            torch.zeros_like(v, dtype=torch.float32),
        )
        extra = [torch.zeros_like(tensor) for tensor in tensors]
        told, told_grads = told.of(tensors), told.of(extra)
        dsink_H = None if sink_H is None else torch.zeros_like(sink_H, dtype=torch.float32)
        for part in _parts(places, scoring):
            raw = _product(q, k, part, scoring.scale)
            leaves = [x.detach().requires_grad_(w) for x, w in zip(told.part(part).tensors, wanted, strict=True)]
            with torch.enable_grad():
                own = told.of(leaves)
                scores = score(raw.requires_grad_(), own, scoring, places.view(part))
            highest, total = norms_BHT2[:, :, part.queries].split(1, dim=-1)
            # In the memory of the scores, which no gradient needs: each stage keeps what goes into it.
            p = _exp_(_hide(scores.detach(), places, scoring, part).sub_(highest)).div_(total)
            kept, do = drop.thin(p, part), _by_group(gradient[:, :, part.queries], v.shape[1])
            dv[:, :, part.keys] += _by_group(kept.to(v.dtype), v.shape[1]).transpose(-1, -2) @ do
            # In fp32, as the scores: the difference of dp and delta is small, and all that the gradient of a score is.
            dp = _by_query(do.float() @ v[:, :, part.keys].float().transpose(-1, -2), q.shape[1])
            grads = told_grads.part(part).tensors
            for addition in own.values:
                dp += _through(addition, kept, gradient[:, :, part.queries].float(), places.view(part), leaves, grads)
            dp = drop.thin(dp, part)
            if sink_H is not None and dsink_H is not None:
                dsink_H -= ((_column(sink_H) - highest).exp() / total * (p * dp).sum(-1, keepdim=True)).sum((0, 2, 3))
            # p (dp - sum p dp) from these very weights: the usual sum of do o, of another rounding, leaves a rest that a
            # relation of huge values multiplies.
            ds = torch.ops.aten._softmax_backward_data(dp, p, -1, torch.float32)
            del dp, p, kept  # a block's matrices are all the memory there is
            ds = _chain(scores, ds, raw, leaves, grads)
            ds = _by_group(ds.mul_(scoring.scale).to(q.dtype), k.shape[1])
            dq[:, :, part.queries] = _by_query(ds @ k[:, :, part.keys], q.shape[1])
            dk[:, :, part.keys] += ds.transpose(-1, -2) @ _by_group(q[:, :, part.queries], k.shape[1])
        extra = [grad if want else None for grad, want in zip(extra, wanted, strict=True)]
        return dq, dk.to(k.dtype), dv.to(v.dtype), dsink_H, None, None, None, None, *extra


class _Drop(NamedTuple):
    """Dropout on the weights whose mask can be drawn again: block by block from one number."""

    probability: float
    seed: int

    @classmethod
    def draw(cls, probability: float) -> _Drop:
        """Take the number from torch's global generator, and none where nothing is dropped."""
        return cls(probability, int(torch.randint(2**62, ())) if probability else 0)

    def thin(self, x: Tensor, part: Part) -> Tensor:
        """The numbers of a block, some of them 0 and the rest larger; `x` itself without dropout."""
        if not self.probability:
            return x
        generator = torch.Generator(x.device).manual_seed(self.seed + part.q0)
        kept = torch.rand(x.shape, generator=generator, device=x.device) >= self.probability
        return x * kept / (1 - self.probability)


def _powers(scores_BHTS: Tensor, sink_H: Tensor | None) -> tuple[Tensor, Tensor]:
    """softmax(scores) in their memory, and what a row was normalised by, (B, H, T, 2); a row that sees nothing is 0.

    It is the largest score and the sum relative to it, apart: their logarithm would be rounded at the size of the scores,
    which a penalty makes huge where all keys in reach are far.
    """
    highest = scores_BHTS.amax(-1, keepdim=True)
    if sink_H is not None:
        highest = torch.maximum(highest, _column(sink_H))
    highest.masked_fill_(highest == float("-inf"), 0.0)
    p = _exp_(scores_BHTS.sub_(highest))
    total = p.sum(-1, keepdim=True)
    if sink_H is not None:
        total += (_column(sink_H) - highest).exp()
    total.masked_fill_(total == 0, 1.0)
    return p.div_(total), torch.cat([highest, total], dim=-1)


def _column(sink_H: Tensor) -> Tensor:
    return sink_H.float().view(-1, 1, 1)


def _exp_(x: Tensor) -> Tensor:
    """exp(x) in place, by powers of 2: torch's exp on a CPU is ten times slower where results vanish, as far keys' do."""
    return x.mul_(1 / math.log(2)).exp2_()


def _parts(places: Places, scoring: Scoring) -> list[Part]:
    """The last first: of a causal model it is the largest, and what it frees is room for all that follow."""
    length = places.q_positions.shape[1]
    return [places.reach(scoring, q0, min(q0 + ROWS, length)) for q0 in range(0, length, ROWS)][::-1]


def _product(q: Tensor, k: Tensor, part: Part, scale: float) -> Tensor:
    """scale q k^T of a part, (B, H, T, S), in fp32: rounding scores to 16 bit would move the weights."""
    rows = _by_group(q[:, :, part.queries], k.shape[1]).float()
    return _by_query(rows @ k[:, :, part.keys].float().transpose(-1, -2), q.shape[1]).mul_(scale)


def _by_group(x_BHTN: Tensor, groups: int) -> Tensor:
    """The heads that read one key/value head under each other, so that it is not repeated: (B, G, H/G T, N)."""
    return x_BHTN.unflatten(1, (groups, -1)).flatten(2, 3)


def _by_query(x_BGRN: Tensor, heads: int) -> Tensor:
    """The inverse of `_by_group`: (B, H, T, N)."""
    return x_BGRN.unflatten(2, (heads // x_BGRN.shape[1], -1)).flatten(1, 2)


def _hide(scores: Tensor, places: Places, scoring: Scoring, part: Part) -> Tensor:
    """Write -inf where a query may not attend. In the middle of a band all may, so only its edges are looked at."""
    for edge in _edges(places, scoring, part):
        hidden = ~places.allowed(scoring, edge)
        scores[..., edge.k0 - part.k0 : edge.k1 - part.k0].masked_fill_(hidden, float("-inf"))
    return scores


def _edges(places: Places, scoring: Scoring, part: Part) -> list[Part]:
    """Where some query of a part may not see some key."""
    if not places.aligned:
        return [part]
    window = scoring.window or part.k1 + part.q1 + places.before
    left = min(max(part.q1 + places.before - window, part.k0), part.k1)  # from here on the last query sees the keys
    right = min(part.q0 + places.before + (1 if scoring.causal else window), part.k1)  # up to here the first one does
    if left >= right:
        return [part]
    edges = part._replace(k1=left), part._replace(k0=right)
    return [edge for edge in edges if edge.k0 < edge.k1]


def _chain(scores: Tensor, ds: Tensor, raw: Tensor, leaves: list[Tensor], grads: list[Tensor]) -> Tensor:
    """The gradient of scale q k^T from that of the scores; those of the relations' tensors are added to `grads`."""
    return ds if scores is raw else _pull(scores, ds, raw, leaves, grads)


def _through(
    addition: Addition, weights: Tensor, do: Tensor, view: View, leaves: list[Tensor], grads: list[Tensor]
) -> Tensor:
    """The gradient of the weights from what an addition makes of them; that of its tensors is added to `grads`."""
    weights = weights.detach().requires_grad_()
    with torch.enable_grad():
        added = addition.at(weights, view)
    return _pull(added, do, weights, leaves, grads)


def _pull(out: Tensor, gradient: Tensor, leaf: Tensor, leaves: list[Tensor], grads: list[Tensor]) -> Tensor:
    asked = [(other, grad) for other, grad in zip(leaves, grads, strict=True) if other.requires_grad]
    found = torch.autograd.grad(out, [leaf, *(other for other, _ in asked)], gradient, allow_unused=True)
    for (_, grad), value in zip(asked, found[1:], strict=True):
        if value is not None:
            grad += value
    return found[0]
