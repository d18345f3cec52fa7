"""From logits to the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token, the lowest id among equals.
        top_k: only the k most likely tokens; None for all.
        top_p: only the fewest most likely tokens whose probabilities sum to at least p; None for all.

    Raises:
        ValueError: a value is outside its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature must be a number of at least 0, came {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, came {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, came {self.top_p}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "temperature 0 takes the most likely token, so top_k and top_p do nothing: set a temperature or remove them"
            )

    def probabilities(self, logits_V: Tensor) -> Tensor:
        """The distribution that the token is drawn from, in fp64; the temperature must be above 0."""
        logits = logits_V.double()
        # Shifted first: a tiny temperature then gives exp(-large) = 0 and never inf - inf.
        probabilities = ((logits - logits.max()) / self.temperature).softmax(-1)
        order = torch.argsort(logits, descending=True, stable=True)
        ranked = probabilities[order]
        keep = torch.ones_like(ranked, dtype=torch.bool)
        if self.top_k is not None:
            keep[self.top_k :] = False
        if self.top_p is not None:
            ranked_kept = ranked * keep
            before = ranked_kept.cumsum(-1) - ranked_kept
            keep &= before < self.top_p * ranked_kept.sum()
        kept = torch.zeros_like(probabilities)
        kept[order[keep]] = ranked[keep]
        return kept / kept.sum()

    def pick(self, logits_V: Tensor, generator: torch.Generator) -> int:
        """One token."""
        if self.temperature == 0:
            return int(logits_V.argmax())
        return int(torch.multinomial(self.probabilities(logits_V), 1, generator=generator))
