"""Text with a cache against text by running the whole prompt anew for every token."""

from typing import Any

import pytest
import torch

import isoflop
from isoflop.generate import generate
from isoflop.model import Architecture, Transformer, build
from isoflop.recipes import recipes

VOCAB = 43
PROMPTS = [[5], [7, 3, 11, 2, 19, 23, 29, 31, 37], [1, 2, 3, 4], [40, 41, 42, 0]]


def small(recipe: str = "modern", **changes: Any) -> Architecture:
    architecture = isoflop.load(recipe, vocab=VOCAB, width=24, depth=2, **{"attention.heads": 4, "dropout": 0.3})
    # Initial weights of 0.02 hardly look at the prompt: large ones make every position and every key count.
    return architecture.override({"init": {"kind": "normal", "std": 0.4}, **changes})


@torch.no_grad()
def recomputed(model: Transformer, prompt: list[int], new_tokens: int, source: list[int] | None = None) -> list[int]:
    tokens = list(prompt)
    for _ in range(new_tokens):
        logits_V = model(torch.tensor([tokens]), source=None if source is None else torch.tensor([source]))[0, -1]
        tokens.append(max(range(VOCAB), key=lambda token: float(logits_V[token])))
    return tokens[len(prompt) :]


CHANGES: dict[str, dict[str, Any]] = {
    "gqa": {"attention": {"kv_heads": 2}},
    "mqa": {"attention": {"kv_heads": 1}},
    "window": {"attention": {"window": 3}},
    "window_one": {"attention": {"window": 1}},
    "softcap": {"attention": {"softcap": 2.0}},
    "qk_norm": {"attention": {"qk_norm": "rms"}},
    "alibi": {"position": "alibi"},
    "alibi_window": {"position": "alibi", "attention": {"window": 4}},
    "interleaved": {"position": {"kind": "rope", "layout": "interleaved", "base": 20.0}},
    "partial": {"position": {"kind": "rope", "fraction": 0.67, "base": 20.0}},
    "learned": {"position": {"kind": "learned", "length": 26}},
    "sinusoidal_and_alibi": {"position": ["sinusoidal", "alibi"]},
    "none": {"position": "none"},
    "post": {"join": "post"},
    "layers_differ": {"blocks": [{"at": "1", "attention": {"window": 2, "kv_heads": 1}, "position": "none"}]},
}


FORMS = {recipe: isoflop.load(recipe).form for recipe in recipes()}


@pytest.mark.parametrize("recipe", [recipe for recipe, form in FORMS.items() if form == "decoder"])
def test_every_recipe(recipe: str) -> None:
    model = build(small(recipe), seed=3).eval()
    expected = [recomputed(model, prompt, 16) for prompt in PROMPTS]
    assert len({tuple(row) for row in expected}) == len(PROMPTS)  # the prompt matters
    assert model.generate(PROMPTS, 16) == expected


@pytest.mark.parametrize("recipe", [recipe for recipe, form in FORMS.items() if form == "encoder_decoder"])
def test_every_recipe_of_pairs(recipe: str) -> None:
    """Sources of their own for one prompt, which then tell the texts apart."""
    model = build(small(recipe), seed=3).eval()
    begin = [[0]] * len(PROMPTS)
    expected = [recomputed(model, [0], 16, source) for source in PROMPTS]
    assert len({tuple(row) for row in expected}) > 1  # the source matters
    assert generate(model, begin, 16, sources=PROMPTS) == expected


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", list(CHANGES))
def test_every_way_to_attend(name: str, kernel: str) -> None:
    architecture = small(**CHANGES[name])
    forced = "eager" if name == "softcap" else kernel
    model = build(architecture, seed=3, kernel=forced).eval()
    expected = [recomputed(model, prompt, 16) for prompt in PROMPTS]
    assert model.generate(PROMPTS, 16) == expected


def test_padding_is_not_seen_whatever_stands_there() -> None:
    """Left padding is token 0: give that token a huge embedding, and no other row may notice."""
    model = build(small(), seed=3).eval()
    model.embed.weight.data[0] *= 1e4
    model.embed.weight.data[0, 0] = 1e6
    prompts = [prompt for prompt in PROMPTS if 0 not in prompt]
    alone = [model.generate([prompt], 12)[0] for prompt in prompts]
    assert model.generate(prompts, 12) == alone


def test_a_tensor_of_prompts() -> None:
    model = build(small(), seed=3)
    prompts = [[1, 2, 3], [4, 5, 6]]
    assert model.generate(torch.tensor(prompts), 5) == model.generate(prompts, 5)


def test_the_training_mode_is_off_while_generating_and_restored() -> None:
    model = build(small(), seed=3).train()
    first = model.generate(PROMPTS, 8)
    assert model.training
    assert model.blocks[0].training
    model.eval()
    assert model.generate(PROMPTS, 8) == first
    assert not model.training


def test_the_training_mode_is_restored_after_an_error() -> None:
    model = build(small(), seed=3).train()

    def fail(row: int, token: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        model.generate([[1]], 4, on_token=fail)
    assert model.training


def test_no_gradients_are_kept() -> None:
    model = build(small(), seed=3)
    model.generate(PROMPTS, 3)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_on_token_reports_each_token_of_each_row_in_order() -> None:
    model, heard = build(small(), seed=3), [[] for _ in PROMPTS]
    produced = model.generate(PROMPTS, 6, on_token=lambda row, token: heard[row].append(token))
    assert heard == produced
