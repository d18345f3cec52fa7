"""From queries, keys and values to outputs: the definition of attention, and faster ways to compute the same.

A kernel declares the stages it can run; `choose` takes the fastest that can run all that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isoflop.model.kernel.banded import banded
from isoflop.model.kernel.chunked import chunked
from isoflop.model.kernel.eager import eager
from isoflop.model.kernel.flex import by_distance, flex
from isoflop.model.kernel.sdpa import sdpa
from isoflop.model.term import Meeting, Scoring

Run = Callable[[Meeting], Tensor]


@dataclass(frozen=True)
class Kernel:
    """A way to compute attention.

    Attributes:
        name: what a user forces it by.
        stages: what it can run.
        run: an evaluation to its output o_BHTE.
        suits: whether it is fast for an evaluation that it can run.
        trains_on_cpu: whether it has a backward pass there.
    """

    name: str
    stages: frozenset[str]
    run: Run
    suits: Callable[[Meeting], bool]
    trains_on_cpu: bool = True


SMALL = 128
"""Queries and keys up to which a matrix of all pairs costs less than a loop over blocks."""


FLEX_WIDTH = 16
"""Components of a head below which torch's FlexAttention has no fused kernel."""


def _small(meeting: Meeting) -> bool:
    return min(meeting.q_BHTE.shape[2], meeting.k_BGSE.shape[2]) <= SMALL


def _suits_sdpa(meeting: Meeting) -> bool:
    """A mask without gradient, and no window that would leave out most of it."""
    if _small(meeting):
        return True
    return not _narrow(meeting) and not (torch.is_grad_enabled() and _learns(meeting.scoring))


def _suits_flex(meeting: Meeting) -> bool:
    """On a GPU, more than a triangle or all pairs, where all that is told of pairs follows from their distance."""
    if not meeting.q_BHTE.is_cuda or _small(meeting) or meeting.q_BHTE.shape[3] < FLEX_WIDTH:
        return False
    scoring, places = meeting.scoring, meeting.places
    plain = not len(scoring.stages) and scoring.window is None and places.q_documents is None
    return not plain and by_distance(meeting)


def _learns(scoring: Scoring) -> bool:
    """Whether a bias has parameters. Asked of the terms alone, since what they say may cost as much as attention itself."""
    return any(parameter.requires_grad for term in scoring.acting("add") for parameter in term.parameters())


def _narrow(meeting: Meeting) -> bool:
    """Whether a window lets queries see less than a quarter of the keys, and indices tell which."""
    window = meeting.scoring.window
    return meeting.places.consecutive and window is not None and 4 * window <= meeting.k_BGSE.shape[2]


def _always(meeting: Meeting) -> bool:
    return True


def _uncompiled(run: Run) -> Run:
    """A loop over the length, which torch.compile would unroll and specialise to every length."""
    return torch.compiler.disable(run)  # pyright: ignore[reportReturnType]  # torch does not say that it stays a Run


_ALL = frozenset({"relate", "cap", "absolute", "scale", "add", "sink", "mix", "values", "dropout"})

KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("flex", frozenset({"cap", "absolute", "scale", "add", "sink"}), flex, _suits_flex, trains_on_cpu=False),
        Kernel("sdpa", frozenset({"add", "dropout"}), sdpa, _suits_sdpa),
        Kernel("eager", _ALL, eager, _small),
        Kernel("banded", _ALL - {"mix"}, _uncompiled(banded), _always),
        Kernel("chunked", _ALL, _uncompiled(chunked), _always),
    )
}
"""Every kernel, in the order in which they are preferred."""


def choose(meeting: Meeting, forced: str | None = None) -> Kernel:
    """The forced kernel, or the fastest that can run an evaluation."""
    if forced is not None:
        return KERNELS[forced]
    able = [kernel for kernel in KERNELS.values() if meeting.scoring.stages <= kernel.stages]
    return next(kernel for kernel in able if kernel.suits(meeting))


def check_kernel(scoring: Scoring, forced: str | None) -> None:
    """Refuse a scoring that no kernel can run, or that the forced one cannot.

    Raises:
        ValueError: says which stage is missing, and who can.
    """
    able = [kernel.name for kernel in KERNELS.values() if scoring.stages <= kernel.stages]
    if not able:
        unknown = ", ".join(sorted(scoring.stages - _ALL))
        raise ValueError(f"no kernel can run the stages {unknown}; the stages are rotate, {', '.join(sorted(_ALL))}")
    if forced is None or forced in able:
        return
    if forced not in KERNELS:
        raise ValueError(f"{forced!r} is no kernel; there are {', '.join(KERNELS)}")
    missing = ", ".join(sorted(scoring.stages - KERNELS[forced].stages))
    raise ValueError(f"kernel {forced!r} cannot run stage {missing}; these can: {', '.join(able)}")
