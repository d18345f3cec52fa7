"""What holds for every kind and every legal combination of them, as functions of an architecture.

Weights are drawn anew, of a size that matters: at the usual 0.02 attention is nearly uniform, gains are 1 and biases 0,
and half of all faults would not be seen.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import KERNELS, Architecture, Transformer, build, parameter_roles, parts
from isoflop.model.init import initialise, rule_for
from isoflop.model.kernel import Dense, Places
from isoflop.model.slots import Scoring
from isoflop.plan.cost import count_parameters, price
from isoflop.spec import to_toml

LENGTH = 7
PADDING = -1
FP32 = {"atol": 1e-5, "rtol": 1e-5}


def lively(architecture: Architecture, kernel: str | None = None) -> Transformer:
    """A model in eval mode with weights that make every parameter matter; the same ones for any kernel."""
    model = build(architecture, kernel=kernel)
    generator = torch.Generator().manual_seed(0)
    roles = parameter_roles(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = parameter.ndim > 1
            drawn = torch.randn(parameter.shape, generator=generator) * (parameter.shape[-1] ** -0.5 if matrix else 0.3)
            parameter.copy_(drawn + (roles[name].role == "gain"))
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


# ------------------------------------------------------------------------------------------------------ declarations


def check_round_trip(architecture: Architecture) -> None:
    """Dumped, as TOML and overridden with nothing, a declaration stays what it is."""
    dumped = architecture.dump()
    again = Architecture.parse(dumped)
    assert again == architecture
    assert again.dump() == dumped
    assert hash(again) == hash(architecture)
    assert Architecture.parse(tomllib.loads(to_toml(architecture))) == architecture
    assert architecture.override({}) == architecture


# ------------------------------------------------------------------------------------------------------ causality


def check_causality(model: Transformer) -> None:
    """A token changes no logits before itself, to the last bit, and its own logits."""
    tokens = some_tokens(model.architecture, 1, LENGTH)
    before = _logits(model, tokens)
    for place in range(LENGTH):
        after = _logits(model, _changed(tokens, place, model.architecture.vocab))
        assert torch.equal(after[:, :place], before[:, :place]), f"token {place} is seen before it"
        assert not torch.equal(after[:, place], before[:, place]), f"token {place} is not seen at its own place"


def check_reach(architecture: Architecture) -> None:
    """In one block a query sees exactly the keys of its window."""
    for declaration in dict.fromkeys(architecture.declarations):
        alone = architecture.override({"blocks": [], "depth": 1, **declaration.dump()})
        window = getattr(declaration.attention, "window", None) or LENGTH
        model = lively(without_dropout(alone))
        tokens = some_tokens(alone, 1, LENGTH)
        before = _logits(model, tokens)
        for place in range(LENGTH):
            after = _logits(model, _changed(tokens, place, alone.vocab))
            seen = (after != before).any(-1)[0].tolist()
            expected = [0 <= query - place < window for query in range(LENGTH)]
            assert seen == expected, f"token {place} is seen by {seen}, window {window}"


# ------------------------------------------------------------------------------------------------------ caches, packing


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

ALL_SPLITS = (
    *([first] + [1] * (LENGTH - first) for first in range(1, LENGTH + 1)),
    [2, 2, 2, 1],
    [3, 3, 1],
    [1, 2, 3, 1],
)
"""Tokens that enter the cache together: every prefill and then one by one, and prefill in chunks."""


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
                alone[number, start:end] = _logits(model, tokens[number : number + 1, start:end])[0]
            start = end
    return Mixed(tokens, positions, documents, alone, documents != PADDING)


def check_packing(model: Transformer, batch: Mixed) -> None:
    """Neighbours in the batch, padding and other documents in the row change nothing."""
    batch.check(_logits(model, batch.tokens, batch.positions, batch.documents), "uncached")


def check_cached(model: Transformer, batch: Mixed, splits: Sequence[Sequence[int]] = ALL_SPLITS) -> None:
    """With a cache, for any split of prefill and decode, logits are those of each sequence alone."""
    for split in splits:
        batch.check(cached_logits(model, batch, split), f"cached {split}")


@torch.no_grad()
def cached_logits(model: Transformer, batch: Mixed, split: Sequence[int]) -> Tensor:
    """Logits of the batch, fed to a cache in parts."""
    cache = ContiguousCache(len(batch.tokens), LENGTH, torch.device("cpu"))
    found = []
    for start, count in zip(itertools.accumulate([0, *split]), split, strict=False):
        span = slice(start, start + count)
        positions = batch.positions[:, span]
        places = cache.place(positions, batch.documents[:, span])
        features = model.encode(batch.tokens[:, span], positions, Cached(cache, places, model.kernel))
        cache.advance(count)
        found.append(F.linear(features, model.head_weight))
    return torch.cat(found, dim=1)


# ------------------------------------------------------------------------------------------------------ kernels


def check_kernels(architecture: Architecture) -> None:
    """Every kernel that can run the architecture gives eager's outputs and gradients.

    In fp32: the logits in eval and training mode and the gradient of every parameter. In bf16: the logits, and at every
    site the gradients of q, k and v (of the whole model a gradient in bf16 says nothing where a unit of ReLU is rounded to
    the other side of its kink).
    """
    declared = without_dropout(architecture)
    models = {name: model for name in KERNELS if (model := _with_kernel(declared, name)) is not None}
    eager = models.pop("eager")
    batch = mixed(eager)
    for places in ((), (batch.positions, batch.documents)):
        exact = _outcome(eager.train(), batch, places)
        for name, model in models.items():
            for key, value in _outcome(model.train(), batch, places).items():
                torch.testing.assert_close(value, exact[key], **FP32, msg=lambda m, n=name, k=key: f"{n} {k}: {m}")
            evaluated = _logits(model.eval(), batch.tokens, *places)[batch.real]
            torch.testing.assert_close(evaluated, exact["logits"], **FP32)
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


def _outcome(model: Transformer, batch: Mixed, places: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Logits of real tokens and the gradient of every parameter."""
    logits = model(batch.tokens, *places)[batch.real]
    loss = (logits * torch.linspace(-1, 1, logits.shape[-1])).tanh().sum(-1).mean()
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return {"logits": logits.detach(), **dict(zip(parameters, gradients, strict=True))}


@dataclass
class _Sites:
    """An `Attend` that keeps what comes to every site."""

    inner: Dense
    seen: list[tuple[tuple[Tensor, Tensor, Tensor], Scoring]]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        self.seen.append(((q, k, v), scoring))
        return self.inner(q, k, v, scoring)


def _check_sites(model: Transformer, batch: Mixed, placed: tuple[Tensor, ...], kernel: str) -> None:
    positions = placed[0] if placed else torch.arange(LENGTH)[None]
    documents = placed[1] if placed else None
    places = Places(positions, positions, documents, documents, aligned=not placed)
    sites = _Sites(Dense(places, "eager"), [])
    with torch.no_grad():
        model.encode(batch.tokens, positions, sites)
    for number, (qkv, scoring) in enumerate(sites.seen):
        rounded = [value.bfloat16() for value in qkv]
        truth = _at_site("eager", [value.float() for value in rounded], scoring, places)
        definition = _at_site("eager", rounded, scoring, places)
        sizes = _sizes([value.float() for value in rounded], scoring, places)
        for what, *values in zip(
            "oqkv", truth, definition, _at_site(kernel, rounded, scoring, places), sizes, strict=True
        ):
            _check_rounding(*values, f"{kernel}: {what} at site {number} in bf16")


def _sizes(qkv: list[Tensor], scoring: Scoring, places: Places) -> list[Tensor]:
    """The size of what is summed in o and in the gradients of q, k and v, which is what rounding is relative to.

    The gradient of the scores is P (dP - sum of P dP): its two parts nearly cancel, and each is rounded on its own.
    """
    q, k, v = qkv
    keys, group = k.shape[2], q.shape[1] // k.shape[1]
    identity = torch.eye(keys).expand(*k.shape[:2], keys, keys)
    weights = KERNELS["eager"].run(q, k, identity, scoring, places, lambda key, make: make(), 0.0)
    k, v = (value.repeat_interleave(group, dim=1).abs() for value in (k, v))
    cotangent = _cotangent(q).abs()
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
    memo: dict[Any, Any] = {}
    output = KERNELS[kernel].run(*leaves, scoring, places, lambda key, make: memo.setdefault(key, make()), 0.0)
    gradients = torch.autograd.grad(output, leaves, _cotangent(output))
    return [value.detach().float() for value in (output, *gradients)]


def _check_bf16_logits(architecture: Architecture, kernels: Iterable[str]) -> None:
    rounded = lively(architecture, "eager").bfloat16()
    batch = mixed(rounded)
    inputs = (batch.tokens, batch.positions, batch.documents)
    definition = _logits(rounded, *inputs)[batch.real]
    truth = _logits(rounded.float(), *inputs)[batch.real]
    for kernel in kernels:
        logits = _logits(lively(architecture, kernel).bfloat16(), *inputs)[batch.real]
        assert logits.dtype == definition.dtype == torch.bfloat16
        _check_rounding(truth, definition.float(), logits.float(), truth, f"{kernel}: logits in bf16")


def _check_rounding(truth: Tensor, definition: Tensor, value: Tensor, size: Tensor, what: str) -> None:
    """The value is no further from fp32 than twice the definition in bf16 (its roundings stand elsewhere) and one unit of
    bf16, 2^-8, of the size of what was rounded, in root mean square."""
    allowed = 2 * _rms(definition - truth) + 2**-8 * _rms(size)
    assert _rms(value - truth) <= allowed, what


def _rms(value: Tensor) -> float:
    return float(value.detach().square().mean().sqrt())


def check_dropout(architecture: Architecture) -> None:
    """Eval is deterministic and equal to no dropout at all; training draws, and draws the same after the same seed."""
    model, plain = lively(architecture), lively(without_dropout(architecture))
    tokens = some_tokens(architecture, 2, LENGTH)
    evaluated = _logits(model, tokens)
    assert torch.equal(evaluated, _logits(model, tokens))
    assert torch.equal(evaluated, _logits(plain, tokens))
    model.train()
    torch.manual_seed(0)
    first, second = _logits(model, tokens), _logits(model, tokens)
    assert torch.equal(first, second) == (without_dropout(architecture) == architecture)
    torch.manual_seed(0)
    assert torch.equal(first, _logits(model, tokens))


# ------------------------------------------------------------------------------------------------------ parameters


def check_parameters(architecture: Architecture) -> None:
    """Every parameter has a role, is covered once, is initialised by rule and gets a finite gradient that is not zero."""
    model = build(architecture, seed=3)
    parameters = dict(model.named_parameters())
    assert parameter_roles(model).keys() == parameters.keys()
    assert count_parameters(architecture) == sum(p.numel() for p in parameters.values())
    _check_parts(model)
    _check_initialised(model, architecture)
    _check_gradients(lively(without_dropout(architecture)))


def _check_parts(model: Transformer) -> None:
    times = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    names = [part.name for part in parts(model)]
    assert len(set(names)) == len(names)
    for part in parts(model):
        assert times[part.parameter][part.rows].shape == part.shape
        times[part.parameter][part.rows] += 1
    assert all((count == 1).all() for count in times.values())


def _check_initialised(model: Transformer, architecture: Architecture) -> None:
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    initialise(model, architecture, seed=3)
    assert all(torch.equal(value, drawn[name]) for name, value in model.state_dict().items())
    assert not any(value.isnan().any() for value in drawn.values())
    seen: list[Tensor] = []
    for part in parts(model):
        values = drawn[part.parameter][part.rows]
        if str(rule_for(part, architecture)).startswith("constant"):
            assert (values == values.flatten()[0]).all(), part.name
            continue
        assert not any(values.shape == other.shape and torch.equal(values, other) for other in seen), part.name
        seen.append(values)


def _check_gradients(model: Transformer) -> None:
    tokens = some_tokens(model.architecture, 2, LENGTH + 1)
    loss = F.cross_entropy(model.train()(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert loss.isfinite()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for part in parts(model):
        gradient = gradients[part.parameter]
        assert gradient is not None, f"{part.name} is not used"
        gradient = gradient[part.rows]
        assert gradient.isfinite().all(), part.name
        assert gradient.any(), f"{part.name} gets no gradient"
        if part.role == "position":
            assert gradient[:LENGTH].any(-1).all(), part.name
            assert not gradient[LENGTH:].any(), "positions beyond the batch are idle"


def check_cost(architecture: Architecture) -> None:
    """The price is what the built model holds and does: parameters and FLOPs to the last one."""
    cost = price(architecture, LENGTH)
    model = build(architecture, kernel="eager").eval()
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sum(cost.components.values()) == cost.parameters
    assert cost.sites == architecture.depth
    with FlopCounterMode(display=False) as counter:
        _logits(model, some_tokens(architecture, 1, LENGTH))
    assert cost.forward_flops_per_token_full * LENGTH == counter.get_total_flops()
    shapes = [block.attention.shape(architecture.width) for block in architecture.declarations]
    assert cost.kv_elements_per_token == sum(2 * shape.key_value * shape.width for shape in shapes)
    assert cost.kv_bytes_per_token(4) == 4 * cost.kv_elements_per_token
    outside = sum(
        _masked_pairs(block.attention) * shape.query * shape.width * 4
        for block, shape in zip(architecture.declarations, shapes, strict=True)
    )
    assert round(cost.forward_flops_per_token * LENGTH) == counter.get_total_flops() - outside


def _masked_pairs(attention: Any) -> int:
    window = getattr(attention, "window", None) or LENGTH
    return sum(not 0 <= query - key < window for query in range(LENGTH) for key in range(LENGTH))


def check_saved(model: Transformer) -> None:
    """Weights that go through a file come back to the bit, into a model of another seed."""
    loaded = load(save(model.state_dict()))
    other = build(model.architecture, seed=9)
    other.load_state_dict(loaded, strict=True)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())
    tokens = some_tokens(model.architecture, 1, LENGTH)
    assert torch.equal(_logits(other.eval(), tokens), _logits(model, tokens))


def check_everything(architecture: Architecture) -> None:
    """All of the above."""
    check_combination(architecture, ALL_SPLITS)
    check_cost(architecture)
    check_dropout(architecture)
    check_saved(lively(architecture))


def check_combination(architecture: Architecture, splits: Sequence[Sequence[int]] = ([3, 1, 2, 1],)) -> None:
    """What a combination could break though each part of it is right alone."""
    check_round_trip(architecture)
    check_parameters(architecture)
    check_reach(architecture)
    check_kernels(architecture)
    model = lively(architecture)
    check_causality(model)
    batch = mixed(model)
    check_packing(model, batch)
    check_cached(model, batch, splits)


@torch.no_grad()
def _logits(model: Transformer, *inputs: Tensor) -> Tensor:
    return model(*inputs)


def _changed(tokens: Tensor, place: int, vocab: int) -> Tensor:
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % vocab
    return changed
