"""An encoder beside the decoder: what is declared, what sees what, and what is computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, Source, Transformer, build, parameter_roles, parts
from isoflop.model.init import initialise, rule_for
from isoflop.model.slots import Prior, Setting
from isoflop.plan.cost import price
from isoflop.spec import SpecError
from models import bias, lively, logits_of

TABLE: dict[str, Any] = {
    "form": "encoder_decoder",
    "vocab": 17,
    "width": 24,
    "depth": 2,
    "attention": {"heads": 4, "window": 3, "priors": "penalty"},
    "ffn": {"hidden": 32},
}


def declared(**change: Any) -> Architecture:
    return Architecture.parse(TABLE).override(change)


# ------------------------------------------------------------------------------------------------------ declarations


def test_an_encoder_is_declared_as_the_decoder_is_where_nothing_else_is_said() -> None:
    reader = declared().reader
    assert reader is not None
    assert (reader.form, reader.depth, reader.vocab) == ("encoder", 2, 17)
    assert reader.declarations == declared().declarations


def test_changes_of_the_encoder_are_laid_over_the_decoders_declaration() -> None:
    reader = declared(
        encoder={"depth": 3, "attention": {"window": None}, "blocks": [{"at": "-1", "norm": "rms"}]}
    ).reader
    assert reader is not None
    assert [block.norm.kind for block in reader.declarations] == ["layer", "layer", "rms"]
    assert all(block.attention.dump().get("window") is None for block in reader.declarations)
    assert reader.declarations[0].attention.dump()["heads"] == 4


def test_attention_to_the_encoder_is_shaped_as_the_blocks_own_without_window_and_priors() -> None:
    crossing = declared().settings[0].crossing
    assert crossing is not None
    attention = crossing.block.attention.dump()
    assert attention["heads"] == 4
    assert not attention["priors"]
    assert "window" not in attention


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"form": "decoder", "encoder": {"depth": 1}},
            "encoder: is part of the form 'encoder_decoder', came form 'decoder'",
        ),
        ({"form": "encoder", "cross": "multi_head"}, "cross: looks at an encoder, and form 'encoder' has none"),
        ({"cross": {"window": 3}}, "cross.window: is about places in one text"),
        ({"cross": {"heads": 5}}, "cross.heads: must divide width 24, came 5"),
        ({"encoder": {"vocab": 3}}, "encoder.vocab: unknown field"),
        ({"encoder": {"dept": 3}}, "encoder.dept: unknown field.*Did you mean 'depth'"),
        ({"encoder": {"cross": "multi_head"}}, "encoder.cross: looks at an encoder"),
        ({"encoder": {"attention": {"heads": 7}}}, "encoder.attention.heads: must divide width 24, came 7"),
        ({"encoder": {"blocks": [{"at": "5", "norm": "rms"}]}}, "encoder.blocks.0.at: must name one of the 2 blocks"),
        (
            {"attention": {"priors": {"measure": {"kind": "gaussian", "centre": "diagonal"}}}},
            "attention.priors.measure.centre: 'diagonal' leads from one text to another",
        ),
        (
            {"cross": {"priors": {"measure": {"kind": "gaussian", "slope": 2.0}}}},
            "cross.priors.measure.slope: does nothing where the centre is 'self'",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        declared(**change)


def test_a_source_is_needed_by_an_encoder_and_by_nothing_else() -> None:
    tokens = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="form 'encoder_decoder' needs a source"):
        build(declared())(tokens)
    with pytest.raises(ValueError, match="form 'decoder' has no encoder to read a source"):
        build(Architecture(vocab=9, width=8, depth=1, attention={"heads": 2}))(tokens, source=tokens)


# ------------------------------------------------------------------------------------------------------ computation


def test_keys_of_the_source_are_computed_once_while_decoding() -> None:
    model = lively(declared())
    calls = []
    for block in model.blocks:
        block.cross.kv.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    model.generate([[1], [2, 3]], 5, sources=[[4, 5, 6], [7]])
    assert len(calls) == len(model.blocks)


def test_generation_equals_the_most_likely_tokens_without_a_cache() -> None:
    model = lively(declared(encoder={"depth": 1}))
    prompts, sources = [[1], [2, 3, 4]], [[4, 5, 6, 7], [8]]
    found = model.generate(prompts, 6, sources=sources)
    for prompt, source, new in zip(prompts, sources, found, strict=True):
        text = list(prompt)
        for _ in range(6):
            logits = logits_of(model, torch.tensor([text]), source=Source(torch.tensor([source])))
            text.append(int(logits[0, -1].argmax()))
        assert new == text[len(prompt) :]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (None, "needs `sources`"),
        ([[1]], "each of the 2 prompts must have a source"),
        ([[1], []], "every source must have at least one token, and one is empty"),
        ([[1], [99]], "token id 99 is outside the vocabulary of 17"),
        ([[1], [1] * 9], "source, 9 is beyond the 8 positions"),
    ],
)
def test_bad_sources_are_refused(sources: Any, message: str) -> None:
    model = build(declared(encoder={"position": {"kind": "learned", "length": 8}}))
    with pytest.raises(ValueError, match=message):
        model.generate([[1], [2]], 3, sources=sources)


def test_sources_are_refused_by_a_decoder() -> None:
    model = build(Architecture(vocab=9, width=8, depth=1, attention={"heads": 2}))
    with pytest.raises(ValueError, match="has no encoder to read `sources`"):
        model.generate([[1]], 3, sources=[[1]])


def test_a_cache_holds_keys_of_the_target_and_of_the_source_as_it_was_priced() -> None:
    architecture = declared(cross={"heads": 2, "kv_heads": 1})
    model, cost = build(architecture), price(architecture, 8)
    cache = ContiguousCache(1, 5, torch.device("cpu"), model.read(torch.zeros(1, 7, dtype=torch.long)))
    positions = torch.arange(5)[None]
    places = cache.place(positions, torch.zeros_like(positions))
    model.encode(torch.zeros(1, 5, dtype=torch.long), positions, Cached(cache, places))
    assert sum(tensor.numel() for tensor in (*cache.keys, *cache.values)) == 5 * cost.kv_elements_per_token
    assert sum(tensor.numel() for pair in cache.of_source for tensor in pair) == 7 * cost.kv_elements_per_source_token


# ------------------------------------------------------------------------------------------------------ priors


def test_a_diagonal_centre_is_eq_4_with_mu_along_the_source() -> None:
    prior = Prior.parse(
        {
            "kind": "penalty",
            "gamma": 0.7,
            "measure": {"kind": "gaussian", "sigma": 1.5, "centre": "diagonal", "slope": 2.5, "offset": -0.5},
        }
    )
    setting = Setting(declared(), declared(), causal=False, across=True)
    prior.check(setting)
    found = bias(prior.term(setting, 1, 8), torch.arange(4)[None], torch.arange(9)[None])
    for i in range(4):
        for j in range(9):
            mu = 2.5 * i - 0.5
            assert found[0, 0, i, j].item() == pytest.approx(-0.7 * (j - mu) ** 2 / (2 * 1.5**2), rel=1e-5)


def test_a_centre_anywhere_is_between_the_ends_of_the_source() -> None:
    """mu_i = (m - 1) sigmoid(f(q_i)): a causal decoder may know the length of the source, though not its own."""
    architecture = declared(cross={"heads": 4, "priors": {"measure": {"kind": "gaussian", "centre": "anywhere"}}})
    crossing = architecture.settings[0].crossing
    assert crossing is not None
    assert not crossing.causal
    model = lively(architecture)
    tokens, source = torch.randint(17, (1, 5)), torch.randint(17, (1, 9))
    padded = torch.cat([source, torch.zeros(1, 4, dtype=torch.long)], dim=1)
    documents = torch.tensor([[0] * 9 + [-1] * 4])
    alone = logits_of(model, tokens, source=Source(source))
    torch.testing.assert_close(logits_of(model, tokens, source=Source(padded, documents_BS=documents)), alone)


# ------------------------------------------------------------------------------------------------------ initial weights


def test_each_side_is_initialised_by_its_own_depth() -> None:
    architecture = declared(init="gpt2", encoder={"depth": 8})
    model = build(architecture)
    rules = {part.name: str(rule_for(part, architecture)) for part in parts(model)}
    assert rules["blocks.0.attention.o.weight"] == rules["blocks.0.cross.o.weight"] == "normal(std=0.01)"
    assert rules["encoder.blocks.0.attention.o.weight"] == "normal(std=0.005)"
    assert parameter_roles(model)["encoder.blocks.7.ffn.up.weight"].block == 7


def test_a_decoder_shares_the_weights_it_has_in_common_with_an_encoder_decoder() -> None:
    both = build(declared(), seed=5)
    alone = Transformer(Architecture.parse({**declared().dump(), "form": "decoder"}))
    initialise(alone, alone.architecture, seed=5)
    theirs = both.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in alone.state_dict().items())
