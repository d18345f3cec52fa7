"""Tiny models whose every weight matters, and the batches that properties are checked on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isoflop.model import KERNELS, Architecture, Source, Transformer, build, parameter_roles, parts
from isoflop.model.places import Places
from isoflop.model.slots import Setting
from isoflop.model.term import Meeting, Scoring, Term

LENGTH = 7
SETTING = Setting(Architecture(), Architecture())
"""A setting for terms that do not depend on it."""
PADDING = -1
FP32 = {"atol": 1e-5, "rtol": 1e-5}
TRAINING_KERNELS = {name: kernel for name, kernel in KERNELS.items() if kernel.trains_on_cpu}
"""The kernels with a backward pass on a CPU; what the others compute there is in `test_flex`."""


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


def able_kernels(architecture: Architecture) -> list[str]:
    """The kernels that can run every attention of an architecture."""
    with torch.device("meta"):
        modules = list(Transformer(architecture).modules())
    needed = frozenset().union(*(m.scoring.stages for m in modules if isinstance(getattr(m, "scoring", None), Scoring)))
    return [name for name, kernel in TRAINING_KERNELS.items() if needed <= kernel.stages]


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
    """A batch of rows that are full, padded left, padded right and packed, and the logits of each sequence alone.

    `moved`: how far a last bit of the parameters moves the logits, which a model without any norm makes a thousand.
    """

    tokens: Tensor
    positions: Tensor
    documents: Tensor
    alone: Tensor
    real: Tensor
    source: Source | None
    moved: float

    @property
    def room(self) -> dict[str, float]:
        """How close logits must be."""
        return {**FP32, "atol": max(FP32["atol"], 4 * self.moved)}

    def check(self, logits: Tensor, what: str) -> None:
        """The logits of real tokens are those of their sequence alone."""
        near, alone = self.room, self.alone[self.real]
        torch.testing.assert_close(logits[self.real], alone, **near, msg=lambda text: f"{what}: {text}")


ROWS = (
    (0, 0, 0, 0, 0, 0, 0),
    (PADDING, PADDING, PADDING, 0, 0, 0, 0),
    (0, 0, 0, 0, PADDING, PADDING, PADDING),
    (0, 0, 0, 0, 1, 1, 1),
)
"""Document ids."""
SOURCE_ROWS = (
    (0, 0, 0, 0, 0, 0),
    (0, 0, 0, PADDING, PADDING, PADDING),
    (PADDING, PADDING, 0, 0, 0, 0),
    (0, 0, 0, 1, 1, PADDING),
)
"""Document ids of what the encoder reads beside them, where there is one."""


def mixed(model: Transformer) -> Mixed:
    """A batch of `ROWS`."""
    documents = torch.tensor(ROWS)
    tokens = some_tokens(model.architecture, *documents.shape)
    positions = torch.zeros_like(documents)
    alone = torch.zeros(*documents.shape, model.architecture.vocab)
    source = None if model.encoder is None else mixed_source(model.architecture)
    for number, row in enumerate(ROWS):
        for document, span in spans(row):
            if document != PADDING:
                positions[number, span] = torch.arange(span.stop - span.start)
                read = source and of_document(source, number, document)
                alone[number, span] = logits_of(model, tokens[number : number + 1, span], source=read)[0]
    real, placed = documents != PADDING, (tokens, positions, documents)
    before = logits_of(model, *placed, source=source)[real]
    with a_last_bit_off(model):
        moved = logits_of(model, *placed, source=source)[real] - before
    return Mixed(tokens, positions, documents, alone, real, source, float(moved.abs().max()))


@contextmanager
def a_last_bit_off(model: Transformer) -> Iterator[None]:
    """Every parameter a last bit up or down."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 2**-23 * torch.randn(parameter.shape, generator=generator).sign())
    yield
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)


def mixed_source(architecture: Architecture) -> Source:
    """A batch of `SOURCE_ROWS`."""
    documents = torch.tensor(SOURCE_ROWS)
    positions = torch.zeros_like(documents)
    for number, row in enumerate(SOURCE_ROWS):
        for _, span in spans(row):
            positions[number, span] = torch.arange(span.stop - span.start)
    tokens = torch.randint(architecture.vocab, documents.shape, generator=torch.Generator().manual_seed(2))
    return Source(tokens, positions, documents)


def of_document(source: Source, row: int, document: int) -> Source:
    """One document of a source alone."""
    assert source.documents_BS is not None
    return Source(source.tokens_BS[row : row + 1, source.documents_BS[row] == document])


def spans(row: tuple[int, ...]) -> Iterator[tuple[int, slice]]:
    """Each document of a row and where it stands."""
    start = 0
    for document, members in itertools.groupby(row):
        end = start + len(list(members))
        yield document, slice(start, end)
        start = end


def some_source(architecture: Architecture, rows: int, length: int = LENGTH - 2) -> Source | None:
    """What the encoder reads, if there is one: the same every time."""
    if architecture.reader is None:
        return None
    generator = torch.Generator().manual_seed(3)
    return Source(torch.randint(architecture.vocab, (rows, length), generator=generator))


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
def logits_of(model: Transformer, tokens: Tensor, *places: Any, source: Source | None = None) -> Tensor:
    """Logits without gradients; of some source, where there is an encoder and none is given."""
    return model(tokens, *places, source=source or some_source(model.architecture, len(tokens)))


@torch.no_grad()
def features_of(model: Transformer, tokens: Tensor, source: Source | None = None) -> Tensor:
    """What the head reads; it works on each place alone, and may hide a small change (one unit of ReLU, normalised)."""
    return model.features(tokens, source=source or some_source(model.architecture, len(tokens)))
