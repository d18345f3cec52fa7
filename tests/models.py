"""Tiny models whose every weight matters, and the batches that properties are checked on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isoflop.model import Architecture, Transformer, build, parameter_roles, parts
from isoflop.model.places import Places
from isoflop.model.slots import Setting
from isoflop.model.term import Meeting, Scoring, Term

LENGTH = 7
SETTING = Setting(Architecture(), Architecture())
"""A setting for terms that do not depend on it."""
PADDING = -1
FP32 = {"atol": 1e-5, "rtol": 1e-5}


def lively(architecture: Architecture, kernel: str | None = None) -> Transformer:
    """A model in eval mode with weights that make every parameter matter; the same ones for any kernel."""
    model = build(architecture, kernel=kernel)
    declared = {part.parameter for part in parts(model) if part.initial is not None}
    generator = torch.Generator().manual_seed(0)
    roles = parameter_roles(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = parameter.ndim > 1
            drawn = torch.randn(parameter.shape, generator=generator) * (parameter.shape[-1] ** -0.5 if matrix else 0.3)
            start = parameter if name in declared else float(roles[name].role == "gain")
            parameter.copy_(drawn + start)
    return model.eval()


def some_tokens(architecture: Architecture, *shape: int) -> Tensor:
    """Token ids, the same ones every time."""
    return torch.randint(architecture.vocab, shape, generator=torch.Generator().manual_seed(1))


def without_dropout(architecture: Architecture) -> Architecture:
    """The same architecture with every dropout off."""

    def off(value: Any) -> Any:
        if isinstance(value, list):
            return [off(item) for item in value]
        if isinstance(value, dict):
            return {key: 0.0 if key == "dropout" else off(item) for key, item in value.items()}
        return value

    return Architecture.parse(off(architecture.dump()))


@dataclass(frozen=True)
class Mixed:
    """A batch of rows that are full, padded left, padded right and packed, and the logits of each sequence alone."""

    tokens: Tensor
    positions: Tensor
    documents: Tensor
    alone: Tensor
    real: Tensor

    def check(self, logits: Tensor, what: str) -> None:
        """The logits of real tokens are those of their sequence alone."""
        torch.testing.assert_close(logits[self.real], self.alone[self.real], **FP32, msg=lambda text: f"{what}: {text}")


ROWS = (
    (0, 0, 0, 0, 0, 0, 0),
    (PADDING, PADDING, PADDING, 0, 0, 0, 0),
    (0, 0, 0, 0, PADDING, PADDING, PADDING),
    (0, 0, 0, 0, 1, 1, 1),
)
"""Document ids."""


def mixed(model: Transformer) -> Mixed:
    """A batch of `ROWS`."""
    documents = torch.tensor(ROWS)
    tokens = some_tokens(model.architecture, *documents.shape)
    positions = torch.zeros_like(documents)
    alone = torch.zeros(*documents.shape, model.architecture.vocab)
    for number, row in enumerate(ROWS):
        start = 0
        for document, members in itertools.groupby(row):
            end = start + len(list(members))
            if document != PADDING:
                positions[number, start:end] = torch.arange(end - start)
                alone[number, start:end] = logits_of(model, tokens[number : number + 1, start:end])[0]
            start = end
    return Mixed(tokens, positions, documents, alone, documents != PADDING)


def meeting(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, places: Places, dropout: float = 0.0) -> Meeting:
    """One evaluation of attention, of queries that no term rotates."""
    memo: dict[Any, Any] = {}

    def once(key: Any, make: Callable[[], Any]) -> Any:
        if key not in memo:
            memo[key] = make()
        return memo[key]

    return Meeting(q, q, k, v, scoring, places, once, dropout)


def bias(term: Term, q_positions: Tensor, k_positions: Tensor, heads: int = 1) -> Tensor:
    """What a term adds to the scores at these positions, whatever the queries are."""
    q, k = (torch.zeros(1, heads, positions.shape[1], 8) for positions in (q_positions, k_positions))
    places = Places(q_positions, k_positions)
    scoring = Scoring(scale=1.0, causal=False, window=None, softcap=None, dropout=0.0, terms=(term,))
    return term.add(meeting(q, k, k, scoring, places)).at(places.view(places.whole))


@torch.no_grad()
def logits_of(model: Transformer, *inputs: Any) -> Tensor:
    return model(*inputs)
