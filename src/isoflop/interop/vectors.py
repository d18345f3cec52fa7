"""Vectors of whole texts, from an encoder that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isoflop.data import Codec, LibraryCodec
from isoflop.model import Transformer
from isoflop.model.pool import How, pool

PADDING = -1
"""The document id of padding."""


@torch.no_grad()
def embed_texts(
    model: Transformer, codec: Codec, texts: Sequence[str], how: How = "mean", normalise: bool = True, batch: int = 32
) -> Tensor:
    """A vector for each text, (texts, D), on the device of the model.

    Texts are tokenized with all that the tokenizer's template puts around them, and take part in batches of so many, filled up
    on the right; a text's vector does not depend on its neighbours. `how` and `normalise`: see `pool`.

    Raises:
        ValueError: the model came without a tokenizer, a text has no token, or more tokens than the model has positions.
    """
    if not isinstance(codec, LibraryCodec):
        raise ValueError("this model came without a tokenizer.json, so texts cannot be read; use `features` and `pool`")
    rows = [codec.encode_whole(text) for text in texts]
    for number, row in enumerate(rows):
        if not row:
            raise ValueError(f"text {number} has no token")
        model.architecture.check_length(len(row), f"text {number}, with its length of")
    parts = [_vectors(model, rows[start : start + batch], how, normalise) for start in range(0, len(rows), batch)]
    return torch.cat(parts) if parts else model.head_weight.new_zeros(0, model.architecture.width)


def _vectors(model: Transformer, rows: list[list[int]], how: How, normalise: bool) -> Tensor:
    device, longest = model.head_weight.device, max(map(len, rows))
    tokens_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    documents_BT = torch.tensor([[0] * len(row) + [PADDING] * (longest - len(row)) for row in rows], device=device)
    return pool(model.features(tokens_BT, documents=documents_BT), documents_BT, how, normalise)
