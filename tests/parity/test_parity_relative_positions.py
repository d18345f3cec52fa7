"""T5 of transformers and x-transformers; relative keys and relative sinusoids of Wav2Vec2-BERT, which is a Conformer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, Wav2Vec2BertConfig
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    Wav2Vec2BertRelPositionalEmbedding,
    Wav2Vec2BertSelfAttention,
)
from transplant import randomise
from x_transformers.x_transformers import RelativePositionBias

from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.position import T5
from isoflop.model.position.t5 import bucket
from isoflop.model.slots import Setting
from models import bias

WIDTH, HEADS, LENGTH = 24, 3, 21
SIZES = [(32, 128), (8, 128), (64, 128), (32, 256), (6, 20), (8, 16), (16, 64), (32, 1000), (4, 9), (12, 48)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), SIZES)
def test_buckets(buckets: int, max_distance: int, causal: bool) -> None:
    offsets = torch.arange(-1100, 1101)
    theirs = T5Attention._relative_position_bucket(offsets, not causal, buckets, max_distance)
    assert [bucket(offset, buckets, max_distance, causal) for offset in offsets.tolist()] == theirs.tolist()


@pytest.mark.parametrize("causal", [True, False])
def test_bias_of_x_transformers(causal: bool) -> None:
    """With queries that begin late, as while decoding (fault 047)."""
    theirs = RelativePositionBias(scale=1.0, causal=causal, num_buckets=16, max_distance=40, heads=HEADS)
    architecture = Architecture()
    mine = T5(buckets=16, max_distance=40).term(Setting(architecture, architecture, causal=causal), HEADS, 8)
    mine.table.weight.data = theirs.relative_attention_bias.weight.data
    keys = torch.arange(90)[None]
    found = bias(mine, keys[:, 60:], keys, HEADS)[0]
    expected = theirs(30, 90)
    if causal:  # what comes after the query is masked, and theirs counts it as the query itself, like ours
        assert expected[:, 0, 61:].unique().numel() == HEADS
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def outputs(attention: nn.Module, x_BTD: Tensor) -> Tensor:
    positions = torch.arange(x_BTD.shape[1])[None]
    return attention(x_BTD, Dense(Places(positions, positions, consecutive=True)))


def attention_of(position: dict[str, Any], form: str, **changes: Any) -> nn.Module:
    attention = {"heads": HEADS, **changes}
    return (
        build(Architecture(form=form, width=WIDTH, depth=1, position=position, attention=attention)).blocks[0].attention
    )


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_t5_attention(causal: bool) -> None:
    config = T5Config(
        d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, relative_attention_num_buckets=8,
        relative_attention_max_distance=16, is_decoder=causal, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = randomise(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    position = {"kind": "t5", "buckets": 8, "max_distance": 16}
    mine = attention_of(position, "decoder" if causal else "encoder", scale=1.0)
    weights = theirs.state_dict()
    table = weights["relative_attention_bias.weight"]
    mine.load_state_dict(
        {
            "qkv.weight": torch.cat([weights[f"{p}.weight"] for p in "qkv"]),
            "o.weight": weights["o.weight"],
            "terms.0.table.weight": table,
        }
    )
    x_BTD = torch.randn(2, LENGTH, WIDTH)
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None] if causal else None
    expected = theirs(x_BTD, mask=mask)[0]
    torch.testing.assert_close(outputs(mine, x_BTD), expected, rtol=1e-5, atol=1e-5)
    assert (table.max() - table.min()) > 1


def conformer(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Their attention, and the weights of ours that are alike."""
    config = Wav2Vec2BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, position_embeddings_type=kind, max_source_positions=40,
        left_max_position_embeddings=4, right_max_position_embeddings=4, attention_dropout=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = randomise(Wav2Vec2BertSelfAttention(config))
    weights = theirs.state_dict()
    mine = {f"qkv.{own}": torch.cat([weights[f"linear_{p}.{own}"] for p in "qkv"]) for own in ("weight", "bias")}
    return theirs, mine | {f"o.{own}": weights[f"linear_out.{own}"] for own in ("weight", "bias")}


@torch.no_grad()
def test_relative_keys() -> None:
    theirs, weights = conformer("relative_key")
    mine = attention_of({"kind": "relative", "reach": 4, "value": False}, "encoder", bias=True)
    mine.load_state_dict({**weights, "terms.0.key_table": theirs.distance_embedding.weight})
    x_BTD = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(outputs(mine, x_BTD), theirs(x_BTD)[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_relative_sinusoids() -> None:
    """Their vector alternates sines and cosines, ours has all sines first: the columns of W_R change places."""
    theirs, weights = conformer("relative")
    mine = attention_of({"kind": "transformer_xl"}, "encoder", bias=True)
    columns = [*range(0, WIDTH, 2), *range(1, WIDTH, 2)]
    weights["terms.0.map"] = theirs.linear_pos.weight[:, columns]
    weights |= {f"terms.0.biases.{name}": getattr(theirs, f"pos_bias_{name}") for name in "uv"}
    mine.load_state_dict(weights)
    x_BTD = torch.randn(2, LENGTH, WIDTH)
    embedded = Wav2Vec2BertRelPositionalEmbedding(theirs.config)(x_BTD)
    expected = theirs(x_BTD, relative_position_embeddings=embedded)[0]
    torch.testing.assert_close(outputs(mine, x_BTD), expected, rtol=1e-5, atol=1e-5)
