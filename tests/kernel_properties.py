"""Kernels against eager, the definition of attention; part of `properties`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from isoflop.model import Architecture, Transformer
from isoflop.model.attend import Dense
from isoflop.model.kernel.eager import attend_part
from isoflop.model.places import Places
from isoflop.model.slots import Attend, Expand, KeysValues, as_kept
from isoflop.model.term import Scoring
from models import (
    FP32,
    LENGTH,
    TRAINING_KERNELS,
    Mixed,
    a_last_bit_off,
    lively,
    logits_of,
    meeting,
    mixed,
    without_dropout,
)


def check_kernels(architecture: Architecture, *, thorough: bool = True) -> None:
    """Every kernel that can run the architecture gives eager's outputs and gradients.

    Kernels that go by blocks of queries (and of sequences) get blocks so small that even here there are several.

    In fp32: the logits in eval and training mode and the gradient of every parameter. In bf16: the logits, and at every
    site the gradients of q, k and v (of the whole model a gradient in bf16 says nothing where a unit of ReLU is rounded to
    the other side of its kink), which are looked at in packed rows too if `thorough`.
    """
    banded, chunked = (import_module(f"isoflop.model.kernel.{name}") for name in ("banded", "chunked"))
    with patch.object(banded, "ROWS", 3), patch.object(banded, "PAIRS", 300), patch.object(chunked, "ROWS", 2):
        _check_kernels(without_dropout(architecture), thorough)


def _check_kernels(declared: Architecture, thorough: bool) -> None:
    models = {name: model for name in TRAINING_KERNELS if (model := _with_kernel(declared, name)) is not None}
    eager = models.pop("eager")
    batch = mixed(eager)
    running = torch.where(batch.real, batch.positions, torch.arange(LENGTH))  # the promise is for padding too
    for places in ((), (batch.positions, batch.documents), (running, batch.documents, True)):
        exact = _outcome(eager.train(), batch, places)
        moved = _moved_by_rounding(eager, exact, batch, places)
        for name, model in models.items():
            for key, value in _outcome(model.train(), batch, places).items():
                near = {**FP32, "atol": FP32["atol"] + 4 * moved[key]}
                torch.testing.assert_close(value, exact[key], **near, msg=lambda m, n=name, k=key: f"{n} {k}: {m}")
            evaluated = logits_of(model.eval(), batch.tokens, *places, source=batch.source)[batch.real]
            torch.testing.assert_close(
                evaluated, exact["logits"], **{**FP32, "atol": FP32["atol"] + 4 * moved["logits"]}
            )
            if thorough or not places:
                _check_sites(eager, batch, places, name)
    _check_bf16_logits(declared, models.keys())


def _with_kernel(architecture: Architecture, kernel: str) -> Transformer | None:
    try:
        return lively(architecture, kernel)
    except ValueError as error:
        # The definition runs everything, and a kernel that cannot run a stage says so; any other refusal is a fault.
        assert kernel != "eager"
        assert "cannot run stage" in str(error)  # noqa: PT017
        return None


def _moved_by_rounding(
    model: Transformer, exact: dict[str, Tensor], batch: Mixed, places: tuple[Any, ...]
) -> dict[str, float]:
    """How far a last bit of the parameters moves each outcome: a norm of a vector near zero, say, makes it a thousand."""
    with a_last_bit_off(model):
        found = _outcome(model, batch, places)
    return {key: float((found[key] - value).abs().max()) for key, value in exact.items()}


def _outcome(model: Transformer, batch: Mixed, places: tuple[Any, ...]) -> dict[str, Tensor]:
    """Logits of real tokens and the gradient of every parameter."""
    logits = model(batch.tokens, *places, source=batch.source)[batch.real]
    loss = (logits * torch.linspace(-1, 1, logits.shape[-1])).tanh().sum(-1).mean()
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return {"logits": logits.detach(), **dict(zip(parameters, gradients, strict=True))}


class _Site(NamedTuple):
    """What comes to one evaluation of attention."""

    qkv: tuple[Tensor, Tensor, Tensor]
    scoring: Scoring
    places: Places


@dataclass
class _Sites:
    """An `Attend` that keeps what comes to every site."""

    inner: Dense
    seen: list[_Site]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, expand: Expand = as_kept) -> Tensor:
        self.seen.append(_Site((q, *expand(k, v)), scoring, self.inner.places))
        return self.inner(q, k, v, scoring, expand)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        return self.inner.once(key, make)

    def recall(self, x_BTD: Tensor, memory: int) -> tuple[Tensor, Attend]:
        past_BMD, beside = self.inner.recall(x_BTD, memory)
        assert isinstance(beside, Dense)
        return past_BMD, replace(self, inner=beside)

    def across(self, q: Tensor, keys_values: KeysValues, scoring: Scoring, expand: Expand = as_kept) -> Tensor:
        assert self.inner.memory is not None
        qkv = (q, *expand(*keys_values(self.inner.memory.states_BSD)))
        self.seen.append(_Site(qkv, scoring, self.inner.memory.seen_from(self.inner.places)))
        return self.inner.across(q, keys_values, scoring, expand)


def _check_sites(model: Transformer, batch: Mixed, placed: tuple[Any, ...], kernel: str) -> None:
    positions = placed[0] if placed else torch.arange(LENGTH)[None]
    documents = placed[1] if placed else None
    places = Places(positions, positions, documents, documents, consecutive=len(placed) != 2)
    with torch.no_grad():
        sites = _Sites(Dense(places, "eager", memory=model.read(batch.source)), [])
        model.encode(batch.tokens, positions, sites)
    for number, (qkv, scoring, where) in enumerate(sites.seen):
        rounded = [value.bfloat16() for value in qkv]
        truth = _at_site("eager", [value.float() for value in rounded], scoring, where)
        definition = _at_site("eager", rounded, scoring, where)
        sizes = _sizes([value.float() for value in rounded], scoring, where)
        for what, *values in zip(
            "oqkv", truth, definition, _at_site(kernel, rounded, scoring, where), sizes, strict=True
        ):
            _check_rounding(*values, f"{kernel}: {what} at site {number} in bf16")


def _sizes(qkv: list[Tensor], scoring: Scoring, places: Places) -> list[Tensor]:
    """The size of what is summed in o and in the gradients of q, k and v, which is what rounding is relative to.

    The gradient of the scores is P (dP - sum of P dP): its two parts nearly cancel, and each is rounded on its own.
    """
    q, k, v = qkv
    keys, group = k.shape[2], q.shape[1] // k.shape[1]
    identity = torch.eye(keys).expand(*k.shape[:2], keys, keys)
    one = meeting(q, k, identity, scoring, places)
    weights = attend_part(one, replace(one.told, values=()), places.whole, places.allowed(scoring))
    k, v = (value.repeat_interleave(group, dim=1).abs() for value in (k, v))
    cotangent = _cotangent(weights @ v).abs()
    score = weights * (cotangent @ v.mT)
    score = scoring.scale * (score + weights * score.sum(-1, keepdim=True))

    def grouped(value: Tensor) -> Tensor:
        return value.unflatten(1, (-1, group)).sum(2)

    return [weights @ v, score @ k, grouped(score.mT @ q.abs()), grouped(weights.mT @ cotangent)]


def _cotangent(like: Tensor) -> Tensor:
    return torch.linspace(-1, 1, like.numel()).view_as(like).to(like.dtype)


def _at_site(kernel: str, qkv: list[Tensor], scoring: Scoring, places: Places) -> list[Tensor]:
    """The output of attention and its gradients by q, k and v, in fp32."""
    leaves = [value.detach().requires_grad_() for value in qkv]
    output = TRAINING_KERNELS[kernel].run(meeting(*leaves, scoring, places))
    gradients = torch.autograd.grad(output, leaves, _cotangent(output))
    return [value.detach().float() for value in (output, *gradients)]


def _check_bf16_logits(architecture: Architecture, kernels: Iterable[str]) -> None:
    rounded = lively(architecture, "eager").bfloat16()
    batch = mixed(rounded)
    inputs = (batch.tokens, batch.positions, batch.documents)
    definition = logits_of(rounded, *inputs, source=batch.source)[batch.real]
    truth = logits_of(rounded.float(), *inputs, source=batch.source)[batch.real]
    for kernel in kernels:
        logits = logits_of(lively(architecture, kernel).bfloat16(), *inputs, source=batch.source)[batch.real]
        assert logits.dtype == definition.dtype == torch.bfloat16
        _check_rounding(truth, definition.float(), logits.float(), truth, f"{kernel}: logits in bf16")


def _check_rounding(truth: Tensor, definition: Tensor, value: Tensor, size: Tensor, what: str) -> None:
    """The value is no further from fp32 than twice the definition in bf16 (its roundings stand elsewhere) and one unit of
    bf16, 2^-8, of the size of what was rounded, in root mean square."""
    allowed = 2 * _rms(definition - truth) + 2**-8 * _rms(size)
    assert _rms(value - truth) <= allowed, what


def _rms(value: Tensor) -> float:
    """0 for no numbers, as of queries without components."""
    return float((value.detach().square().sum() / max(value.numel(), 1)).sqrt())
