"""x-transformers: ALiBi, rotary positions, and whole pre-norm and post-norm decoders.

Its norm gains are stored as offsets from 1, its rotary pairs are neighbours, its gated feed-forward holds the value before
the gate, and its blocks alternate attention and feed-forward in one list.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transplant import random_tokens, randomise, transplant
from x_transformers import Decoder, TransformerWrapper
from x_transformers.x_transformers import AlibiPositionalBias, RotaryEmbedding, apply_rotary_pos_emb

from isoflop.model import Architecture
from isoflop.model.position import ALiBi, RoPE, paper_slopes
from models import SETTING, bias

DEPTH, WIDTH, HEADS, HEAD_WIDTH, VOCAB = 2, 48, 4, 12, 61


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_slopes(heads: int) -> None:
    assert paper_slopes(heads) == pytest.approx(AlibiPositionalBias(heads).slopes.flatten().tolist(), rel=1e-6)


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_bias_with_a_query_offset(heads: int) -> None:
    keys_B1 = torch.arange(13)[None]
    mine = bias(ALiBi().term(SETTING, heads, 8), keys_B1[:, 8:], keys_B1)[0]
    torch.testing.assert_close(mine, AlibiPositionalBias(heads)(5, 13), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rotated", [4, 8, 12])
def test_rotary(rotated: int) -> None:
    q_BHTE = torch.randn(2, HEADS, 31, HEAD_WIDTH)
    frequencies, _ = RotaryEmbedding(rotated).forward_from_seq_len(31)
    declared = RoPE(layout="interleaved", fraction=rotated / HEAD_WIDTH)
    mine = declared.term(SETTING, HEADS, HEAD_WIDTH).rotate(q_BHTE, torch.arange(31)[None], lambda key, make: make())
    torch.testing.assert_close(mine, apply_rotary_pos_emb(q_BHTE, frequencies), rtol=1e-5, atol=1e-5)


def peer(**flags: Any) -> nn.Module:
    layers = Decoder(
        dim=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        attn_dim_head=HEAD_WIDTH,
        attn_flash=False,
        norm_add_unit_offset=True,
        verbose=False,
        **flags,
    )
    wrapper = TransformerWrapper(
        num_tokens=VOCAB, max_seq_len=64, use_abs_pos_emb=False, tie_embedding=False, attn_layers=layers
    )
    model = randomise(wrapper)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".gamma", ".g")):
                parameter.sub_(1.0)  # stored as an offset from 1
    return model


def mapped(theirs: dict[str, Tensor], norm: str, gain: str, glu: bool) -> dict[str, Tensor]:
    place = {"norm_in": 0, "norm_out": 2}[norm]
    out = {"embed.weight": theirs["token_emb.emb.weight"], "head.weight": theirs["to_logits.weight"]}
    if norm == "norm_in":
        out["final_norm.gain"] = theirs[f"attn_layers.final_norm.{gain}"] + 1
    for i in range(DEPTH):
        attention, ffn, block = f"attn_layers.layers.{2 * i}.", f"attn_layers.layers.{2 * i + 1}.", f"blocks.{i}."
        out[f"{block}attention.qkv.weight"] = torch.cat([theirs[f"{attention}1.to_{p}.weight"] for p in "qkv"])
        out[f"{block}attention.o.weight"] = theirs[f"{attention}1.to_out.weight"]
        out[f"{block}attention_join.{norm}.gain"] = theirs[f"{attention}0.{place}.{gain}"] + 1
        out[f"{block}ffn_join.{norm}.gain"] = theirs[f"{ffn}0.{place}.{gain}"] + 1
        for own in ("weight", "bias"):
            up = theirs[f"{ffn}1.ff.0.{'proj' if glu else 0}.{own}"]
            out[f"{block}ffn.up.{own}"] = torch.cat(up.chunk(2)[::-1]) if glu else up
            out[f"{block}ffn.down.{own}"] = theirs[f"{ffn}1.ff.2.{own}"]
    return out


ROTARY = {"rotary_pos_emb": True, "rotary_emb_dim": 8}
OUR_ROTARY = {"kind": "rope", "layout": "interleaved", "fraction": 8 / HEAD_WIDTH}
LAYER = {"kind": "layer", "bias": False}
RMS = {"kind": "rms", "eps": 1e-12}  # theirs divides by the norm of the row and has no epsilon to speak of


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ({"alibi_pos_bias": True}, {"position": "alibi", "norm": LAYER}),
        ({"pre_norm": False, "alibi_pos_bias": True}, {"position": "alibi", "norm": LAYER, "join": "post"}),
        ({"use_rmsnorm": True, "ff_glu": True, "ff_swish": True, **ROTARY}, {"position": OUR_ROTARY, "norm": RMS}),
        ({"pre_norm": False, "ff_glu": True, **ROTARY}, {"position": OUR_ROTARY, "norm": LAYER, "join": "post"}),
    ],
    ids=["alibi-pre", "alibi-post", "rotary-pre-rms-swiglu", "rotary-post-geglu"],
)
@torch.no_grad()
def test_decoder(flags: dict[str, Any], changes: dict[str, Any], kernel: str) -> None:
    glu, hidden = flags.get("ff_glu", False), 4 * WIDTH
    activation = "silu" if "ff_swish" in flags else "gelu"
    ffn = {"kind": "glu" if glu else "plain", "activation": activation, "hidden": hidden, "bias": True}
    architecture = Architecture(
        vocab=VOCAB, width=WIDTH, depth=DEPTH, attention={"heads": HEADS}, ffn=ffn, tie_head=False, **changes
    )
    theirs = peer(**flags)
    norm = "norm_in" if flags.get("pre_norm", True) else "norm_out"
    weights = mapped(theirs.state_dict(), norm, "g" if "use_rmsnorm" in flags else "gamma", glu)
    model = transplant(architecture, weights, kernel)
    tokens_BT = random_tokens(3, 33, vocab=VOCAB)
    expected_BTV = theirs(tokens_BT)
    assert expected_BTV.std() > 0.5
    torch.testing.assert_close(model(tokens_BT), expected_BTV, rtol=1e-5, atol=1e-5)
