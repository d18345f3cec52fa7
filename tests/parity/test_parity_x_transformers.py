"""x-transformers: ALiBi, rotary positions, whole pre-norm and post-norm decoders, and value residuals.

Its norm gains are stored as offsets from 1, its rotary pairs are neighbours, its gated feed-forward holds the value before
the gate, and its blocks alternate attention and feed-forward in one list.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transplant import random_tokens, randomise, transplant
from x_transformers import Decoder, TransformerWrapper
from x_transformers.x_transformers import AlibiPositionalBias, RotaryEmbedding, apply_rotary_pos_emb

from isoflop.model import Architecture, Past
from isoflop.model.position import ALiBi, RoPE, paper_slopes
from isoflop.model.prior import Penalty
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


@pytest.mark.parametrize("heads", [4, 6])
def test_a_penalty_of_the_distance_with_their_slopes_is_their_bias(heads: int) -> None:
    """Eq. 1 and 2; that of transformers, which counts keys alone, is the same up to a number for each row where none is later."""
    theirs, keys_B1 = AlibiPositionalBias(heads), torch.arange(13)[None]
    slopes = theirs.slopes.flatten().tolist()
    found = torch.cat(
        [
            bias(Penalty(gamma=slope, heads=(head,)).term(SETTING, heads, 8), keys_B1, keys_B1, heads)[0, head, None]
            for head, slope in enumerate(slopes)
        ]
    )
    torch.testing.assert_close(found, theirs(13, 13), rtol=1e-6, atol=0)
    bloom = build_alibi_tensor(torch.ones(1, 13), heads, torch.float32)  # (H, 1, S)
    rows = (found - bloom).masked_fill(torch.ones(13, 13).triu(1).bool(), float("nan"))
    assert (rows.nan_to_num(-1e9).amax(-1) - rows.nan_to_num(1e9).amin(-1)).abs().max() < 1e-5
    future = (1 - torch.ones(13, 13).tril()) * -1e9
    torch.testing.assert_close((found + future).softmax(-1), (bloom + future).softmax(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rotated", [4, 8, 12])
def test_rotary(rotated: int) -> None:
    q_BHTE = torch.randn(2, HEADS, 31, HEAD_WIDTH)
    frequencies, _ = RotaryEmbedding(rotated).forward_from_seq_len(31)
    declared = RoPE(layout="interleaved", fraction=rotated / HEAD_WIDTH)
    mine = declared.term(SETTING, HEADS, HEAD_WIDTH).rotate(q_BHTE, torch.arange(31)[None], lambda key, make: make())
    torch.testing.assert_close(mine, apply_rotary_pos_emb(q_BHTE, frequencies), rtol=1e-5, atol=1e-5)


def peer(depth: int = DEPTH, **flags: Any) -> nn.Module:
    layers = Decoder(
        dim=WIDTH,
        depth=depth,
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


def mapped(theirs: dict[str, Tensor], norm: str, gain: str, glu: bool, depth: int = DEPTH) -> dict[str, Tensor]:
    place = {"norm_in": 0, "norm_out": 2}[norm]
    out = {"embed.weight": theirs["token_emb.emb.weight"], "head.weight": theirs["to_logits.weight"]}
    if norm == "norm_in":
        out["final_norm.gain"] = theirs[f"attn_layers.final_norm.{gain}"] + 1
    for i in range(depth):
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


@pytest.mark.parametrize("own", [None, 0.2])
@torch.no_grad()
def test_value_residual(own: float | None) -> None:
    """Theirs predicts a share for each token and head; without weights, only the bias of the prediction is left of it."""
    depth = 3  # from the third block on, the first is not the one before
    learned = own is not None
    theirs = peer(depth, alibi_pos_bias=True, add_value_residual=True, learned_value_residual_mix=learned)
    residual: dict[str, Any] = {"kind": "fixed", "first": 0.5, "own": 0.5}
    weights = mapped(theirs.state_dict(), "norm_in", "gamma", glu=False, depth=depth)
    if own is not None:
        residual = {"kind": "learned"}
        for i in range(1, depth):
            prediction = theirs.attn_layers.layers[2 * i][1].to_value_residual_mix[0]
            prediction.weight.zero_()
            prediction.bias.fill_(torch.tensor(own).logit())
            weights[f"blocks.{i}.attention.values.mix.shares"] = torch.tensor([1 - own, own])
    architecture = Architecture(
        vocab=VOCAB,
        width=WIDTH,
        depth=depth,
        position="alibi",
        norm=LAYER,
        attention={"heads": HEADS, "value_residual": residual},
        ffn={"activation": "gelu", "hidden": 4 * WIDTH, "bias": True},
        tie_head=False,
    )
    tokens_BT = random_tokens(3, 33, vocab=VOCAB)
    expected_BTV = theirs(tokens_BT)
    assert expected_BTV.std() > 0.5
    torch.testing.assert_close(transplant(architecture, weights)(tokens_BT), expected_BTV, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("memory", [5, 8, 13, 40])
@pytest.mark.parametrize(
    ("flags", "changes", "gradients"),
    [
        ({"pre_norm": False, "alibi_pos_bias": True}, {"position": "alibi", "join": "post"}, True),
        ({"pre_norm": False, **ROTARY}, {"position": OUR_ROTARY, "join": "post"}, True),
        ({**ROTARY}, {"position": OUR_ROTARY}, False),
    ],
    ids=["alibi-post", "rotary-post", "rotary-pre"],
)
def test_memory(flags: dict[str, Any], changes: dict[str, Any], gradients: bool, memory: int) -> None:
    """Segment after segment: logits, and the gradients that a segment gives. Theirs remembers the stream before the norm.

    Of a pre-norm block it therefore gives the norm a gradient through the memory, which ours does not.
    """
    theirs = peer(**flags)
    theirs.max_mem_len = memory  # type: ignore[assignment]
    norm = "norm_in" if flags.get("pre_norm", True) else "norm_out"
    architecture = Architecture(
        vocab=VOCAB,
        width=WIDTH,
        depth=DEPTH,
        norm=LAYER,
        attention={"heads": HEADS, "memory": memory},
        ffn={"activation": "gelu", "hidden": 4 * WIDTH, "bias": True},
        tie_head=False,
        **changes,
    )
    model = transplant(architecture, mapped(theirs.state_dict(), norm, "gamma", glu=False))
    past, mems = Past(), None
    for segment_BT in random_tokens(3, 32, vocab=VOCAB).split(8, dim=1):
        expected_BTV, mems = theirs(segment_BT, mems=mems, return_mems=True)
        mems = [mem.detach() for mem in mems]
        features_BTD, past = model.segment(segment_BT, past)
        found_BTV = model.logits(features_BTD)
        torch.testing.assert_close(found_BTV, expected_BTV, rtol=1e-5, atol=2e-5)
        if gradients:
            for one, logits_BTV in ((theirs, expected_BTV), (model, found_BTV)):
                one.zero_grad()
                (logits_BTV * torch.linspace(-1, 1, VOCAB)).tanh().sum().backward()
            named = {name: parameter.grad for name, parameter in theirs.named_parameters()}
            told = mapped({n: named.get(n, t) for n, t in theirs.state_dict().items()}, norm, "gamma", glu=False)
            for name, parameter in model.named_parameters():
                shift = 1.0 if name.endswith("gain") else 0.0  # the map adds 1 to gains
                torch.testing.assert_close(parameter.grad, told[name] - shift, rtol=1e-4, atol=1e-4)
