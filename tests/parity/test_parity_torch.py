"""torch.nn's own layers, with the same weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transplant import randomise

from isoflop.model import Architecture, Source, build
from isoflop.model.activation import GELU
from isoflop.model.attend import Dense
from isoflop.model.norm import RMS, Layer
from isoflop.model.places import Places

WIDTH, HEADS, HIDDEN, LENGTH = 48, 4, 72, 21


def dense(length: int) -> Dense:
    positions_BT = torch.arange(length)[None]
    return Dense(Places(positions_BT, positions_BT, consecutive=True))


def assert_same_with_gradient(mine: Callable, theirs: Callable, x: Tensor) -> None:
    weight, gradients = torch.randn_like(x), []
    for module in (mine, theirs):
        leaf = x.clone().requires_grad_()
        out = module(leaf)
        (out * weight).sum().backward()
        gradients.append((out.detach(), leaf.grad))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(eps: float, bias: bool) -> None:
    theirs = randomise(nn.LayerNorm(WIDTH, eps, bias=bias))
    mine = Layer(eps=eps, bias=bias).build(WIDTH)
    mine.load_state_dict({("gain" if name == "weight" else name): w for name, w in theirs.state_dict().items()})
    assert_same_with_gradient(mine, theirs, torch.randn(3, LENGTH, WIDTH) * 2 + 1)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize("cast", ["after_gain", "before_gain"])
def test_rms_norm(eps: float, cast: str) -> None:
    theirs = randomise(nn.RMSNorm(WIDTH, eps))
    mine = RMS(eps=eps, cast=cast).build(WIDTH)
    mine.load_state_dict({"gain": theirs.weight})
    assert_same_with_gradient(mine, theirs, torch.randn(3, LENGTH, WIDTH) * 2 + 1)


@pytest.mark.parametrize(("form", "approximate"), [("exact", "none"), ("tanh", "tanh")])
def test_gelu(form: str, approximate: str) -> None:
    assert_same_with_gradient(GELU(form=form).build(), nn.GELU(approximate=approximate), torch.linspace(-6, 6, 1001))


def attention_weights(theirs: nn.MultiheadAttention, prefix: str = "") -> dict[str, Tensor]:
    return {
        f"{prefix}qkv.weight": theirs.in_proj_weight,
        f"{prefix}qkv.bias": theirs.in_proj_bias,
        f"{prefix}o.weight": theirs.out_proj.weight,
        f"{prefix}o.bias": theirs.out_proj.bias,
    }


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_multihead_attention(kernel: str) -> None:
    theirs = randomise(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    declared = Architecture(width=WIDTH, depth=1, position="none", attention={"heads": HEADS, "bias": True})
    mine = build(declared, kernel=kernel).blocks[0].attention
    mine.load_state_dict(attention_weights(theirs))
    attend, forbidden = dense(LENGTH), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    attend.kernel = kernel
    assert_same_with_gradient(
        lambda x: mine(x, attend),
        lambda x: theirs(x, x, x, attn_mask=forbidden, need_weights=False)[0],
        torch.randn(3, LENGTH, WIDTH),
    )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layer(norm_first: bool, activation: str) -> None:
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, activation=activation, norm_first=norm_first, batch_first=True, dropout=0.3
    )
    randomise(theirs)
    declared = Architecture(
        width=WIDTH,
        depth=1,
        position="none",
        join="pre" if norm_first else "post",
        dropout=0.3,  # eval turns it off on both sides
        attention={"heads": HEADS, "bias": True},
        ffn={"activation": activation, "hidden": HIDDEN, "bias": True},
    )
    mine = build(declared).eval().blocks[0]
    norm = "norm_in" if norm_first else "norm_out"
    weights = attention_weights(theirs.self_attn, "attention.")
    for ours, name in {"attention_join": "norm1", "ffn_join": "norm2"}.items():
        weights |= {
            f"{ours}.{norm}.gain": getattr(theirs, name).weight,
            f"{ours}.{norm}.bias": getattr(theirs, name).bias,
        }
    for ours, name in {"ffn.up": "linear1", "ffn.down": "linear2"}.items():
        weights |= {f"{ours}.weight": getattr(theirs, name).weight, f"{ours}.bias": getattr(theirs, name).bias}
    mine.load_state_dict(weights)
    attend, forbidden = dense(LENGTH), torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
    assert_same_with_gradient(
        lambda x: mine(x, attend),
        lambda x: theirs(x, src_mask=forbidden, is_causal=True),
        torch.randn(3, LENGTH, WIDTH),
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_decoder(norm_first: bool) -> None:
    """Three blocks that read and two that write, of torch's own layers."""
    width, heads, hidden = 24, 4, 40
    options: dict[str, Any] = {"activation": "relu", "batch_first": True, "norm_first": norm_first, "dropout": 0.0}
    last = [nn.LayerNorm(width) if norm_first else None for _ in range(2)]
    reads = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, heads, hidden, **options), 3, last[0], enable_nested_tensor=False
    )
    writes = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, heads, hidden, **options), 2, last[1])
    theirs = randomise(nn.ModuleDict({"encoder": reads, "decoder": writes})).eval()
    mine = build(
        Architecture(
            form="encoder_decoder",
            vocab=17,
            width=width,
            depth=2,
            position="none",
            join="pre" if norm_first else "post",
            attention={"heads": heads, "bias": True},
            ffn={"hidden": hidden, "bias": True},
            encoder={"depth": 3},
        )
    )
    mine.eval().load_state_dict(
        {"embed.weight": mine.embed.weight, **encoder_decoder_weights(theirs, "norm_in" if norm_first else "norm_out")}
    )
    tokens, source = torch.randint(17, (2, 6)), torch.randint(17, (2, 9))
    padded = torch.arange(9) >= torch.tensor([[9], [5]])
    memory = reads(mine.embed(source), src_key_padding_mask=padded)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = writes(mine.embed(tokens), memory, tgt_mask=future, memory_key_padding_mask=padded)
    found = mine.features(tokens, source=Source(source, documents_BS=-padded.long()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def encoder_decoder_weights(theirs: nn.ModuleDict, norm: str) -> dict[str, Tensor]:
    """torch's weights by our names."""
    found: dict[str, Tensor] = {}
    for name, weight in theirs.state_dict().items():
        side, _, rest = name.partition(".")
        prefix = "encoder." if side == "encoder" else ""
        if rest.startswith("norm."):
            found[f"{prefix}final_norm.{'gain' if rest.endswith('weight') else 'bias'}"] = weight
            continue
        _, number, part, *_ = rest.split(".")
        kind = rest.rpartition(".")[2].removeprefix("in_proj_")
        cross = "multihead_attn" in rest
        joins = ["attention_join", *(["cross_join"] if side == "decoder" else []), "ffn_join"]
        if part.startswith("norm"):
            ours = f"{joins[int(part[-1]) - 1]}.{norm}.{'gain' if kind == 'weight' else 'bias'}"
            found[f"{prefix}blocks.{number}.{ours}"] = weight
        elif part.startswith("linear"):
            found[f"{prefix}blocks.{number}.ffn.{'up' if part == 'linear1' else 'down'}.{kind}"] = weight
        elif "out_proj" in rest:
            found[f"{prefix}blocks.{number}.{'cross' if cross else 'attention'}.o.{kind}"] = weight
        elif cross:
            third = len(weight) // 3
            found[f"{prefix}blocks.{number}.cross.q.{kind}"] = weight[:third]
            found[f"{prefix}blocks.{number}.cross.kv.{kind}"] = weight[third:]
        else:
            found[f"{prefix}blocks.{number}.attention.qkv.{kind}"] = weight
    return found
