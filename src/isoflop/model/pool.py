"""One vector for a whole text, out of the vectors of its tokens. Legend: B rows, T tokens, D width."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

How = Literal["mean", "first", "last"]


def pool(features_BTD: Tensor, documents_BT: Tensor | None = None, how: How = "mean", normalise: bool = True) -> Tensor:
    """A vector for each row, (B, D), of what `Transformer.features` gave; padding takes no part.

    Formula: mean over the tokens of a text, or the vector of its first or last token; over its length where `normalise`.
    Paper: Reimers & Gurevych 2019 (Sentence-BERT), arXiv 1908.10084

    Args:
        features_BTD: the stream; means and lengths are taken in fp32 at least, and returned in its type.
        documents_BT: the documents that `features` was given: one text a row, and a negative number on padding, on any
            side. None means that all is text.

    Raises:
        ValueError: `how` is unknown, or a row holds no text or several.
    """
    if how not in _WEIGHTS:
        raise ValueError(f"how must be one of {', '.join(_WEIGHTS)}, came {how!r}")
    rows, length = features_BTD.shape[:2]
    if documents_BT is None:
        documents_BT = torch.zeros(rows, length, dtype=torch.long, device=features_BTD.device)
    real_BT = documents_BT >= 0
    _check(documents_BT, real_BT)
    wide_BTD = features_BTD.to(torch.promote_types(features_BTD.dtype, torch.float32))
    # Chosen by `where`, not multiplied by 0: what padding computed may be anything, also NaN.
    weights_BT1 = _WEIGHTS[how](real_BT).to(wide_BTD.dtype).unsqueeze(-1)
    pooled_BD = torch.where(weights_BT1 > 0, wide_BTD * weights_BT1, 0.0).sum(1)
    return (F.normalize(pooled_BD, dim=-1) if normalise else pooled_BD).to(features_BTD.dtype)


def _mean(real_BT: Tensor) -> Tensor:
    return real_BT / real_BT.sum(1, keepdim=True)


def _first(real_BT: Tensor) -> Tensor:
    return real_BT & (real_BT.cumsum(1) == 1)


def _last(real_BT: Tensor) -> Tensor:
    return _first(real_BT.flip(1)).flip(1)


_WEIGHTS = {"mean": _mean, "first": _first, "last": _last}


def _check(documents_BT: Tensor, real_BT: Tensor) -> None:
    empty = ~real_BT.any(1)
    if empty.any():
        raise ValueError(f"row {int(empty.nonzero()[0])} holds no text, only padding")
    highest = documents_BT.amax(1, keepdim=True)
    several = (real_BT & (documents_BT != highest)).any(1)
    if several.any():
        raise ValueError(f"row {int(several.nonzero()[0])} holds several documents: pool takes one text a row")
