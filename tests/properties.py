"""What holds for every kind and every legal combination of them, as functions of an architecture.

Weights are drawn anew, of a size that matters: at the usual 0.02 attention is nearly uniform, gains are 1 and biases 0,
and half of all faults would not be seen.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, Past, Source, Transformer, build, parameter_roles, parts
from isoflop.model.attention import HardCodedAttention, Latent
from isoflop.model.init import initialise, rule_for
from isoflop.model.slots import Setting
from isoflop.plan.cost import count_parameters, price
from isoflop.spec import to_toml
from isoflop.train.checkpoint import named_tensors, restore
from kernel_properties import check_kernels
from models import (
    FP32,
    LENGTH,
    Mixed,
    features_of,
    lively,
    logits_of,
    mixed,
    of_document,
    some_source,
    some_tokens,
    without_dropout,
)

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
    before = logits_of(model, tokens)
    for place in range(LENGTH):
        after = logits_of(model, _changed(tokens, place, model.architecture.vocab))
        assert torch.equal(after[:, :place], before[:, :place]), f"token {place} is seen before it"
        assert not torch.equal(after[:, place], before[:, place]), f"token {place} is not seen at its own place"


def check_reach(architecture: Architecture) -> None:
    """In one block a query sees exactly the keys of its window."""
    for declaration in dict.fromkeys(architecture.declarations):
        # Values of another block come from there, token by token: they are left out with it.
        attention = {**declaration.attention.dump(), "value_residual": None}
        if isinstance(declaration.attention, HardCodedAttention):
            attention["sigma"] = float(LENGTH)  # fp32 does not see the tail of a narrow density
        changed = {"share": "none", "encoder": None, **declaration.dump(), "attention": attention}
        alone = architecture.override({"blocks": [], "depth": 1, **changed})
        window = getattr(declaration.attention, "window", None) or LENGTH
        model = lively(without_dropout(alone))
        tokens = some_tokens(alone, 1, LENGTH)
        before = features_of(model, tokens)
        for place in range(LENGTH):
            after = features_of(model, _changed(tokens, place, alone.vocab))
            seen = (after != before).any(-1)[0].tolist()
            expected = [_sees(alone, query, place, window) for query in range(LENGTH)]
            assert seen == expected, f"token {place} is seen by {seen}, window {window}"


def check_memory(architecture: Architecture) -> None:
    """Where memories hold all that is in reach, a text walked through in segments has the logits of the whole text."""
    blocks = []
    for number, declaration in enumerate(architecture.declarations):
        if not declaration.attention.remembered:
            return
        table = declaration.attention.dump()
        # Values of another block come from there, as far back as its own memory.
        attention = {**table, "value_residual": None, "memory": (table.get("window") or LENGTH + 1) - 1 or None}
        blocks.append({"at": str(number), **declaration.dump(), "attention": attention})
    model = lively(without_dropout(architecture.override({"blocks": blocks})))
    tokens = some_tokens(model.architecture, 2, LENGTH)
    for documents in (None, torch.tensor([[0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 2, 3, 3]])):
        whole = walked(model, tokens, [LENGTH], documents)
        for split in ([3, 4], [1, 2, 4], [2, 1, 1, 3]):
            torch.testing.assert_close(walked(model, tokens, split, documents), whole, **FP32)


@torch.no_grad()
def walked(model: Transformer, tokens: Tensor, split: Sequence[int], documents: Tensor | None = None) -> Tensor:
    """Features of a text, segment by segment."""
    past, found, start = Past(), [], 0
    for count in split:
        span = slice(start, start + count)
        features, past = model.segment(
            tokens[:, span], past, documents=None if documents is None else documents[:, span]
        )
        found.append(features)
        start += count
    return torch.cat(found, dim=1)


def check_source(model: Transformer) -> None:
    """Every token of the target sees every token of the source."""
    source = some_source(model.architecture, 1)
    assert source is not None
    tokens = some_tokens(model.architecture, 1, LENGTH)
    before = features_of(model, tokens)
    for place in range(source.tokens_BS.shape[1]):
        changed = Source(_changed(source.tokens_BS, place, model.architecture.vocab))
        seen = (features_of(model, tokens, source=changed) != before).any(-1)
        assert seen.all(), f"token {place} of the source is seen by {seen.tolist()}"


def _sees(architecture: Architecture, query: int, key: int, window: int) -> bool:
    return abs(query - key) < window and (key <= query or not architecture.causal)


# ------------------------------------------------------------------------------------------------------ caches, packing


ALL_SPLITS = (
    *([first] + [1] * (LENGTH - first) for first in range(1, LENGTH + 1)),
    [2, 2, 2, 1],
    [3, 3, 1],
    [1, 2, 3, 1],
)
"""Tokens that enter the cache together: every prefill and then one by one, and prefill in chunks."""


def check_packing(model: Transformer, batch: Mixed) -> None:
    """Neighbours in the batch, padding and other documents in the row change nothing."""
    logits = logits_of(model, batch.tokens, batch.positions, batch.documents, source=batch.source)
    batch.check(logits, "uncached")
    # Documents whose positions go on instead of starting anew.
    tokens, documents = batch.tokens[-1:], batch.documents[-1:]
    source = batch.source and Source(*(tensor[-1:] for tensor in vars(batch.source).values() if tensor is not None))
    together = logits_of(model, tokens, None, documents, source=source)
    for document in documents.unique():
        span = documents[0] == document
        read = source and of_document(source, 0, int(document))
        alone = logits_of(model, tokens[:, span], torch.arange(LENGTH)[None, span], source=read)
        torch.testing.assert_close(together[:, span], alone, **batch.room)


def check_cached(model: Transformer, batch: Mixed, splits: Sequence[Sequence[int]] = ALL_SPLITS) -> None:
    """With a cache, for any split of prefill and decode, logits are those of each sequence alone."""
    for split in splits:
        batch.check(cached_logits(model, batch, split), f"cached {split}")


@torch.no_grad()
def cached_logits(model: Transformer, batch: Mixed, split: Sequence[int]) -> Tensor:
    """Logits of the batch, fed to a cache in parts."""
    cache = ContiguousCache(len(batch.tokens), LENGTH, torch.device("cpu"), model.read(batch.source))
    found = []
    for start, count in zip(itertools.accumulate([0, *split]), split, strict=False):
        span = slice(start, start + count)
        positions = batch.positions[:, span]
        places = cache.place(positions, batch.documents[:, span])
        features = model.encode(batch.tokens[:, span], positions, Cached(cache, places, model.kernel))
        cache.advance(count)
        found.append(model.logits(features))
    return torch.cat(found, dim=1)


# ------------------------------------------------------------------------------------------------------ dropout


def check_dropout(architecture: Architecture) -> None:
    """Eval is deterministic and equal to no dropout at all; training draws, and draws the same after the same seed."""
    model, plain = lively(architecture), lively(without_dropout(architecture))
    tokens = some_tokens(architecture, 2, LENGTH)
    evaluated = logits_of(model, tokens)
    assert torch.equal(evaluated, logits_of(model, tokens))
    assert torch.equal(evaluated, logits_of(plain, tokens))
    model.train()
    torch.manual_seed(0)
    first, second = logits_of(model, tokens), logits_of(model, tokens)
    assert torch.equal(first, second) == (without_dropout(architecture) == architecture)
    torch.manual_seed(0)
    assert torch.equal(first, logits_of(model, tokens))


# ------------------------------------------------------------------------------------------------------ parameters


def check_parameters(architecture: Architecture) -> None:
    """Every parameter has a role, is covered once, is initialised by rule and gets a finite gradient that is not zero."""
    model = build(architecture, seed=3)
    parameters = dict(model.named_parameters())
    assert parameter_roles(model).keys() == parameters.keys()
    assert count_parameters(architecture) == sum(p.numel() for p in parameters.values())
    _check_parts(model)
    _check_initialised(model, architecture)
    _check_gradients(without_dropout(architecture))


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


def _check_gradients(architecture: Architecture) -> None:
    """Each part of each parameter gets a gradient, at `lively` weights or, where these saturate a softmax or a cap without
    any norm before it, at much smaller ones."""
    model = lively(architecture)
    idle = _idle(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.2)
    still = idle & _idle(model) if idle else idle
    assert not still, f"get no gradient: {sorted(still)}"


def _idle(model: Transformer) -> set[str]:
    """The parts whose gradient is 0 throughout."""
    tokens = some_tokens(model.architecture, 2, LENGTH + 1)
    source = some_source(model.architecture, 2, LENGTH)
    logits = model.train()(tokens[:, :-1], source=source)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    parameters, idle = dict(model.named_parameters()), set()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    assert loss.isfinite()
    gradients = dict(zip(parameters, found, strict=True))
    for part in parts(model):
        gradient = gradients[part.parameter]
        assert gradient is not None, f"{part.name} is not used"
        gradient = gradient[part.rows]
        assert gradient.isfinite().all(), part.name
        if not gradient.any():
            idle.add(part.name)
            continue
        if part.name.removeprefix("encoder.").startswith("positions."):
            assert gradient[:LENGTH].any(-1).all(), part.name
            assert not gradient[LENGTH:].any(), "positions beyond the batch are idle"
    return idle


def check_cost(architecture: Architecture) -> None:
    """The price is what the built model holds and does: parameters and FLOPs to the last one."""
    cost = price(architecture, LENGTH)
    model = build(architecture, kernel="eager").eval()
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sum(cost.components.values()) == cost.parameters
    sites = [(side, block.attention) for side in architecture.sides for block in side.declarations]
    assert cost.sites == len(sites) + (architecture.depth if architecture.reader else 0)
    tokens, source, past = some_tokens(architecture, 1, LENGTH), some_source(architecture, 1, LENGTH), Past()
    assert architecture.remembered <= LENGTH, "one segment fills the memory"
    with torch.no_grad():
        if architecture.remembered:
            _, past = model.segment(tokens, past)
        with FlopCounterMode(display=False) as counter:
            model.logits(model.segment(tokens, past, source=source)[0])
    assert cost.forward_flops_per_token_full * LENGTH == counter.get_total_flops()
    crossings = [setting.crossing for setting in architecture.settings]
    assert cost.kv_elements_per_token == sum(map(_kept, architecture.settings if architecture.causal else []))
    assert cost.kv_elements_per_source_token == sum(_kept(setting) for setting in crossings if setting)
    assert cost.kv_bytes_per_token(4) == 4 * cost.kv_elements_per_token
    outside = 0
    for side, attention in sites:
        shape = attention.shape(side.width)
        outside += _masked_pairs(side, attention) * shape.query * 2 * (shape.width + shape.value)
    assert round(cost.forward_flops_per_token * LENGTH) == counter.get_total_flops() - outside


def _kept(setting: Setting) -> int:
    attention, shape = setting.block.attention, setting.heads
    if isinstance(attention, Latent):
        return attention.latent + attention.rotary_width
    return shape.key_value * (shape.width + shape.value)


def _masked_pairs(architecture: Architecture, attention: Any) -> int:
    window = getattr(attention, "window", None) or LENGTH + attention.remembered
    pairs = [(query, key) for query in range(LENGTH) for key in range(-attention.remembered, LENGTH)]
    return sum(not _sees(architecture, query, key, window) for query, key in pairs)


def check_saved(model: Transformer) -> None:
    """Weights that go through a file come back to the bit, into a model of another seed."""
    loaded = load(save(named_tensors(model)))
    other = build(model.architecture, seed=9)
    restore(named_tensors(other), loaded, "memory")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())
    tokens = some_tokens(model.architecture, 1, LENGTH)
    assert torch.equal(logits_of(other.eval(), tokens), logits_of(model, tokens))


def check_everything(architecture: Architecture) -> None:
    """All of the above."""
    check_combination(architecture, ALL_SPLITS, thorough=True)
    check_cost(architecture)
    check_dropout(architecture)
    check_saved(lively(architecture))


def check_combination(
    architecture: Architecture, splits: Sequence[Sequence[int]] = ([3, 1, 2, 1],), *, thorough: bool = False
) -> None:
    """What a combination could break though each part of it is right alone."""
    check_round_trip(architecture)
    check_parameters(architecture)
    check_reach(architecture)
    check_kernels(architecture, thorough=thorough)
    model = lively(architecture)
    batch = mixed(model)
    check_packing(model, batch)
    if architecture.reader is not None:
        check_source(model)
    if architecture.remembered:
        check_memory(architecture)
    if architecture.causal:
        check_causality(model)
        check_cached(model, batch, splits)


def _changed(tokens: Tensor, place: int, vocab: int) -> Tensor:
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % vocab
    return changed
