"""What a model has to predict: the next token, or tokens that were hidden from it.

Shapes: B rows of a batch, T tokens of a window.
"""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from isoflop.seeds import seed_for
from isoflop.spec import Slot, SpecError

NO_TARGET = -100
"""Target of a position that has none; `ignore_index` of torch's cross-entropy."""

Share = Annotated[float, Field(ge=0, le=1)]


class Objective(Slot, default="next"):
    """What a model has to predict."""


class Next(Objective, kind="next"):
    """Each token from those before it; with pairs, each token of the target and its end.

    Formula: loss = -sum_t log p(x_{t+1} | x_1 .. x_t)
    """


class Masked(Objective, kind="masked"):
    """Tokens chosen at random, from all the others; what an encoder is trained on. New ones are chosen in every step.

    Each token is chosen by itself with probability `rate`. A chosen token becomes the mask id with probability `mask`,
    a random token with probability `random`, and stays as it is otherwise. End ids are never chosen and never drawn.
    The mask id is the one behind the tokenizer's last, so the architecture's `vocab` must be one larger.

    Formula: loss = -sum_{t chosen} log p(x_t | masked x)
    Paper: Devlin et al. 2019, arXiv 1810.04805
    """

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mask: Share = 0.8
    random: Share = 0.1

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.mask + self.random > 1 + 1e-12:
            raise SpecError.at("random", f"and mask ({self.mask}) must be at most 1 together, came {self.random}")
        return self

    def hide(self, tokens_BT: np.ndarray, raw_BT3: np.ndarray, end: int, mask: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens with some of them hidden, and targets that are those tokens, -100 elsewhere.

        Args:
            tokens_BT: int64, ids below `mask`.
            raw_BT3: uint64 random bits: which are chosen, what becomes of them, which random token they become.
            end: an id that is never chosen, and never drawn: 0.
            mask: the mask id; ids of text are `end + 1` to `mask - 1`.
        """
        choose_BT, fate_BT = (raw_BT3[..., part] * 2.0**-64 for part in (0, 1))
        chosen_BT = (choose_BT < self.rate) & (tokens_BT != end)
        drawn_BT = end + 1 + (raw_BT3[..., 2] % np.uint64(mask - end - 1)).astype(np.int64)
        hidden_BT = np.where(
            fate_BT < self.mask, mask, np.where(fate_BT < self.mask + self.random, drawn_BT, tokens_BT)
        )
        return np.where(chosen_BT, hidden_BT, tokens_BT), np.where(chosen_BT, tokens_BT, NO_TARGET)


def random_bits(shape: tuple[int, ...], *purpose: object) -> np.ndarray:
    """uint64 random bits that follow from a purpose alone, the same on any machine and version of numpy."""
    return np.random.Philox(key=seed_for(*purpose)).random_raw(int(np.prod(shape))).reshape(shape)
