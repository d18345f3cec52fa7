"""Measures: how far a key is from where a query would look."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.chosen import Chosen
from isoflop.model.places import Places
from isoflop.model.prior.number import ANY, NEGATIVE, POSITIVE, Learned, Source, above, check_number, number
from isoflop.model.relation import Relation, Tensors, View, combined, given_by_query
from isoflop.model.slots import Measure, Setting
from isoflop.model.term import Meeting
from isoflop.spec import OneOrMany, SpecError

NARROWEST = 1e-3
"""No Gaussian is narrower: far below this its square leaves fp32, and all there is to see is one key."""

WIDTHS = above(NARROWEST)


class Distance(Measure, kind="distance"):
    """The distance itself.

    Formula: G_ij = |i - j|
    Paper: Press, Smith & Lewis 2022, arXiv 2108.12409
    """

    def build(self, chosen: Chosen) -> nn.Module:
        return DistanceMeasure()


class Gaussian(Measure, kind="gaussian"):
    """The exponent of a Gaussian of width sigma around a centre mu.

    `centre`: `self` is mu_i = i + offset (a list of offsets is dealt to the heads in turn); `before` is predicted from the
    query, somewhere from the start to the query itself, mu_i = i sigmoid(f(q_i)); `anywhere` is predicted in the whole
    document, mu_i = (n - 1) sigmoid(f(q_i)), where the queries may know how long it is: in encoders, and in attention to an
    encoder. `diagonal`, for attention to an encoder, is mu_i = slope i + offset: slope is how many tokens a source has for
    one of the target, the (m - 1) / (n - 1) of texts whose length n is not known before they are written. f(q) = u tanh(W q)
    + b for each head. `sigma_is` and
    `offset_is`: `fixed`; `learned`, one for all heads; `per_head`; or `predicted` by such an f, sigma through a softplus.
    The window D of Yang et al. is 2 sigma; the s of T-GSA, whose exponent is (j - i)² / s², is sqrt(2) sigma.

    Formula: G_ij = (j - mu_i)² / (2 sigma_i²)
    Paper: Yang et al. 2018, arXiv 1810.10182; Sperber et al. 2018, arXiv 1803.09519
    """

    sigma: Annotated[float, Field(gt=NARROWEST)] = 4.0
    sigma_is: Source = "fixed"
    centre: Literal["self", "before", "anywhere", "diagonal"] = "self"
    slope: Annotated[float, Field(gt=0)] = 1.0
    offset: OneOrMany[float] = (0.0,)
    offset_is: Source = "fixed"

    def build(self, chosen: Chosen) -> nn.Module:
        return GaussianMeasure(self, chosen)

    def check(self, setting: Setting, heads: int) -> None:
        if self.centre == "anywhere" and setting.causal:
            raise SpecError.at(
                "centre",
                "'anywhere' depends on the length of the whole document, which a causal model does not see; take 'before' or 'self'",
            )
        if self.centre == "before" and setting.block.attention.remembered:
            raise SpecError.at(
                "centre",
                "'before' counts from the start of a text, which a segment with a memory need not hold; take 'self'",
            )
        if self.centre == "diagonal" and not setting.across:
            raise SpecError.at(
                "centre", "'diagonal' leads from one text to another; in attention to one text take 'self'"
            )
        if self.centre != "diagonal" and self.slope != 1.0:
            raise SpecError.at(
                "slope", f"does nothing where the centre is {self.centre!r}; remove it or take 'diagonal'"
            )
        if self.centre in ("before", "anywhere") and (self.offset != (0.0,) or self.offset_is != "fixed"):
            raise SpecError.at("offset", f"does nothing where the centre is predicted, centre = {self.centre!r}")
        if self.offset_is == "learned" and len(self.offset) != 1:
            raise SpecError.at("offset", f"must be 1 number where all heads share it, came {len(self.offset)}")
        if not 1 <= len(self.offset) <= heads:
            raise SpecError.at(
                "offset", f"must be 1 to {heads} numbers, at most one for each head, came {len(self.offset)}"
            )


class GaussianTransformer(Measure, kind="gaussian_transformer"):
    """A weighted square of the distance with a shift, of either sign before the absolute value is taken.

    `w` is above 0. `b` is 0 or below: it holds something against the query's own place. `w_is`, `b_is`: `fixed`; `learned`,
    one for all heads; `per_head`.

    Formula: G_ij = |w (i - j)² + b|, w > 0, b <= 0
    Paper: Guo, Zhang & Liu 2019, Gaussian Transformer, AAAI
    """

    w: Annotated[float, Field(gt=0)] = 0.1
    w_is: Learned = "fixed"
    b: Annotated[float, Field(le=0)] = -0.1
    b_is: Learned = "fixed"

    def build(self, chosen: Chosen) -> nn.Module:
        return GaussianTransformerMeasure(self, chosen)

    def check(self, setting: Setting, heads: int) -> None:
        check_number("b", self.b, self.b_is, NEGATIVE)


class DistanceMeasure(nn.Module):
    """See `Distance`."""

    def forward(self, meeting: Meeting) -> Relation:
        return combined(torch.abs, OFFSETS)


class GaussianMeasure(nn.Module):
    """See `Gaussian`."""

    def __init__(self, spec: Gaussian, chosen: Chosen) -> None:
        super().__init__()
        self.sigma = number(spec.sigma, spec.sigma_is, WIDTHS, chosen, hidden=True)
        self.centre = _CENTRES[spec.centre](spec, chosen)

    def forward(self, meeting: Meeting) -> Relation:
        return combined(_gaussian, self.centre(meeting), self.sigma.relation(meeting))


class AtQuery(nn.Module):
    """Places of keys beside the query's own, moved by an offset."""

    def __init__(self, spec: Gaussian, chosen: Chosen) -> None:
        super().__init__()
        self.offset = number(spec.offset, spec.offset_is, ANY, chosen, hidden=True)

    def forward(self, meeting: Meeting) -> Relation:
        return combined(torch.sub, OFFSETS, self.offset.relation(meeting))


class AlongDiagonal(AtQuery):
    """Places of keys beside one that goes through the source as the query goes through the target."""

    def __init__(self, spec: Gaussian, chosen: Chosen) -> None:
        super().__init__(spec, chosen)
        self.slope = spec.slope

    def forward(self, meeting: Meeting) -> Relation:
        centre_B1T1 = self.slope * _column(meeting.places.q_positions)
        return combined(_beside, KEYS, given_by_query(centre_B1T1), self.offset.relation(meeting))


class BeforeQuery(nn.Module):
    """Places of keys beside one between the start and the query."""

    def __init__(self, spec: Gaussian, chosen: Chosen) -> None:
        super().__init__()
        self.share = number(0.0, "predicted", ANY, chosen, hidden=True)

    def forward(self, meeting: Meeting) -> Relation:
        centre_BHT1 = self.share(meeting).sigmoid() * _column(meeting.places.q_positions)
        return combined(torch.sub, KEYS, given_by_query(centre_BHT1))


class Anywhere(BeforeQuery):
    """Places of keys beside one between the first and the last of the query's document."""

    def forward(self, meeting: Meeting) -> Relation:
        first_B1T1, last_B1T1 = meeting.once("ends of documents", lambda: ends(meeting.places))
        centre_BHT1 = torch.lerp(first_B1T1, last_B1T1, self.share(meeting).sigmoid())
        return combined(torch.sub, KEYS, given_by_query(centre_BHT1))


_CENTRES = {"self": AtQuery, "before": BeforeQuery, "anywhere": Anywhere, "diagonal": AlongDiagonal}


class GaussianTransformerMeasure(nn.Module):
    """See `GaussianTransformer`."""

    def __init__(self, spec: GaussianTransformer, chosen: Chosen) -> None:
        super().__init__()
        self.w = number(spec.w, spec.w_is, POSITIVE, chosen)
        self.b = number(spec.b, spec.b_is, NEGATIVE, chosen)

    def forward(self, meeting: Meeting) -> Relation:
        return combined(_square, OFFSETS, self.w.relation(meeting), self.b.relation(meeting))


def ends(places: Places) -> tuple[Tensor, Tensor]:
    """The lowest and the highest key position in the document of each query, (B or 1, 1, T, 1)."""
    k_BS = places.k_positions
    if places.q_documents is None or places.k_documents is None:
        return _column(k_BS.amin(1, keepdim=True)), _column(k_BS.amax(1, keepdim=True))
    # Documents are few and their ids arbitrary: numbered from 0, each is a bin of its row.
    both = torch.cat([places.q_documents, places.k_documents], dim=1)
    ids, index = both.unique(return_inverse=True)
    q_index, k_index = index.split([places.q_documents.shape[1], places.k_documents.shape[1]], dim=1)
    k_BS = k_BS.expand_as(k_index)
    found = [
        k_BS.new_zeros(len(both), len(ids)).scatter_reduce(1, k_index, k_BS, way, include_self=False).gather(1, q_index)
        for way in ("amin", "amax")
    ]
    return _column(found[0]), _column(found[1])


def _column(positions_BT: Tensor) -> Tensor:
    return positions_BT[:, None, :, None].float()


def _offsets(rows: Tensors, columns: Tensors, shared: Tensors, view: View) -> Tensor:
    return view.offsets.float()


def _keys(rows: Tensors, columns: Tensors, shared: Tensors, view: View) -> Tensor:
    return view.k_positions[:, None, None, :].float()


OFFSETS, KEYS = Relation(_offsets, relative=True), Relation(_keys)
"""The place of the key: beside the query's, and in its document."""


def _gaussian(away: Tensor, sigma: Tensor) -> Tensor:
    return (away / sigma).square() / 2


def _beside(key: Tensor, centre: Tensor, offset: Tensor) -> Tensor:
    return key - centre - offset


def _square(away: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (w * away.square() + b).abs()
