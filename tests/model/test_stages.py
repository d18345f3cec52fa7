"""Every stage of attention in every kernel that can run it: outputs, and the gradients of all that a relation is made of."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from isoflop.model.places import Places
from isoflop.model.relation import Addition, Diagonals, Mixture, Relation, View, by_offset
from isoflop.model.term import Meeting, Scoring, Term
from models import TRAINING_KERNELS, meeting

BATCH, HEADS, KV_HEADS, WIDTH = 2, 4, 2, 8
STAGES = ["relate", "absolute", "scale", "add", "sink", "mix", "values"]
PLAIN = Scoring(scale=0.4, causal=True, window=None, softcap=None, dropout=0.0, terms=())


class Everything(Term):
    """A term that can act in any stage, with parameters for queries, keys, offsets and heads."""

    def __init__(self, *stages: str) -> None:
        super().__init__()
        self.stages = frozenset(stages)
        generator = torch.Generator().manual_seed(3)
        shapes = {"row": (WIDTH,), "column": (WIDTH,), "table": (HEADS, 9), "logit": (HEADS,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(0.3 * torch.randn(shape, generator=generator)))

    def relation(self, meeting: Meeting) -> Relation:
        rows = (meeting.content_BHTE.float() @ self.get_parameter("row"))[..., None]
        columns = (meeting.k_BGSE.float() @ self.get_parameter("column"))[:, :1, :, None]
        return Relation(both_and_offset, (rows,), (columns,), (self.get_parameter("table"),))

    def relate(self, meeting: Meeting) -> Relation:
        return self.relation(meeting)

    def absolute(self, meeting: Meeting) -> Tensor:
        return torch.arange(HEADS) % 2 == 0

    def scale(self, meeting: Meeting) -> Relation:
        return self.relation(meeting)

    def add(self, meeting: Meeting) -> Relation:
        return self.relation(meeting)

    def sink(self, meeting: Meeting) -> Tensor:
        return self.get_parameter("logit")

    def mix(self, meeting: Meeting) -> Mixture:
        return Mixture(self.relation(meeting), self.get_parameter("logit").sigmoid().view(1, -1, 1, 1))

    def values(self, meeting: Meeting) -> Addition:
        return Addition(sum_of_weighted, (self.get_parameter("table"),))


def both_and_offset(rows: Any, columns: Any, shared: Any, view: View) -> Tensor:
    return rows[0] * columns[0].mT + by_offset(shared[0], view, -4)


def sum_of_weighted(weights_BHTS: Tensor, shared: Any, view: View) -> Tensor:
    return (weights_BHTS * by_offset(shared[0], view, -4)).sum(-1, keepdim=True).expand(-1, -1, -1, WIDTH)


def places_of(length: int, packed: bool, consecutive: bool) -> Places:
    if not packed:
        return Places(torch.arange(length)[None], torch.arange(length)[None], consecutive=consecutive)
    owners = (torch.arange(length) >= length // 3).long().expand(BATCH, -1)
    positions = torch.where(owners == 1, torch.arange(length) - length // 3, torch.arange(length))
    return Places(positions, positions, owners, owners, consecutive)


def outcome(kernel: str, stages: list[str], scoring: Scoring, places: Places) -> list[Tensor]:
    """Output, then the gradients of q, k, v and of the term's parameters (zeros for those that the stages leave out)."""
    length, generator = places.q_positions.shape[1], torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(BATCH, h, length, WIDTH, generator=generator) for h in (HEADS, KV_HEADS, KV_HEADS))
    term = Everything(*stages)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = TRAINING_KERNELS[kernel].run(meeting(*leaves, replace(scoring, terms=(term,)), places))
    cotangent = torch.randn(out.shape, generator=generator)
    wanted = [*leaves, *term.parameters()]
    gradients = torch.autograd.grad(out, wanted, cotangent, allow_unused=True)
    pairs = zip(wanted, gradients, strict=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in pairs)]


CASES = [[stage] for stage in STAGES] + [["relate", "absolute", "scale", "add", "sink"], STAGES]
RUNS = [(k, c) for k in TRAINING_KERNELS for c in CASES if k != "eager" and set(c) <= TRAINING_KERNELS[k].stages]


@pytest.mark.parametrize(
    "shape", [{}, {"window": 5}, {"causal": False}, {"causal": False, "window": 4}, {"softcap": 0.9}]
)
@pytest.mark.parametrize(
    ("kernel", "stages"), RUNS, ids=lambda value: "+".join(value) if isinstance(value, list) else value
)
def test_every_kernel_equals_the_definition(kernel: str, stages: list[str], shape: dict[str, Any]) -> None:
    scoring = replace(PLAIN, **shape)
    if not (scoring.softcap is None or "cap" in TRAINING_KERNELS[kernel].stages):
        return
    banded, chunked = (import_module(f"isoflop.model.kernel.{name}") for name in ("banded", "chunked"))
    with patch.object(banded, "ROWS", 4), patch.object(banded, "PAIRS", 1), patch.object(chunked, "ROWS", 5):
        for packed in (False, True):
            for consecutive in (False, True):
                places = places_of(13, packed, consecutive)
                mine, exact = (outcome(name, stages, scoring, places) for name in (kernel, "eager"))
                for value, true in zip(mine, exact, strict=True):
                    torch.testing.assert_close(value, true, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("stages", CASES, ids="+".join)
def test_what_indices_tell_changes_nothing(stages: list[str]) -> None:
    """The same with and without the promise that positions follow each other by one."""
    told, untold = (outcome("eager", stages, PLAIN, places_of(13, True, known)) for known in (True, False))
    for value, true in zip(told, untold, strict=True):
        torch.testing.assert_close(value, true, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3), (4, 4)])
def test_a_vector_along_the_diagonals(rows: int, columns: int) -> None:
    vector = torch.randn(2, rows + columns - 1, dtype=torch.float64, requires_grad=True)
    matrix = Diagonals.apply(vector, rows)
    index = torch.arange(columns)[None] - torch.arange(rows)[:, None] + rows - 1
    assert torch.equal(matrix, vector[:, index])
    assert torch.autograd.gradcheck(lambda v: Diagonals.apply(v, rows), (vector,))


def test_a_large_sink_takes_the_weight_and_a_small_one_none() -> None:
    x = torch.randn(1, HEADS, 6, WIDTH)
    term = Everything("sink")
    for kernel in ("eager", "banded", "chunked"):
        outputs = []
        for logit in (-1e4, 1e4):
            term.get_parameter("logit").data.fill_(logit)
            scoring = replace(PLAIN, terms=(term,))
            places = places_of(6, False, True)
            outputs.append(TRAINING_KERNELS[kernel].run(meeting(x, x, x, scoring, places)))
        torch.testing.assert_close(outputs[0], TRAINING_KERNELS["eager"].run(meeting(x, x, x, PLAIN, places)))
        assert (outputs[1] == 0).all()
