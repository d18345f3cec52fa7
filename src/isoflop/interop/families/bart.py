"""BART and Marian: an encoder and a decoder with a norm behind each sublayer, and a bias on the logits.

BART has learned positions, two rows behind the start of their table, and a norm on the embeddings; Marian has sines.
"""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table, activation, activation_name
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import ROW, Key, Offset, key, module, norm
from isoflop.model import Architecture

OFFSET = 2
WITHOUT_EFFECT = """encoder_layerdrop decoder_layerdrop num_hidden_layers add_bias_logits extra_pos_embeddings
    force_bos_token_to_be_generated classif_dropout"""
AGES = {
    "add_final_layer_norm": False,
    "normalize_before": False,
    "share_encoder_decoder_embeddings": True,
}
"""Keys of older versions, and the one value that newer ones mean when they do not say it."""


def read(config: Config) -> Table:
    """What both have."""
    config.ignore(*WITHOUT_EFFECT.split())
    config.only("is_encoder_decoder", (True,), "this family is an encoder and a decoder")
    for name, value in AGES.items():
        config.only(name, (value,), "blocks of this family have no other form")
    return {
        "form": "encoder_decoder",
        "vocab": config.need("vocab_size"),
        "width": config.need("d_model"),
        **_side(config, "decoder"),
        "encoder": _side(config, "encoder"),
        "norm": {"kind": "layer", "eps": 1e-5},
        "join": "post",
        "dropout": config.get("dropout", 0.1),
        "init": {"kind": "normal", "std": config.get("init_std", 0.02)},
        "head": {"kind": "linear", "bias": True},
        "tie_head": config.get("tie_word_embeddings", True),
        "scale_embedding": config.get("scale_embedding", False),
    }


def _side(config: Config, side: str) -> Table:
    return {
        "depth": config.need(f"{side}_layers"),
        "attention": {
            "heads": config.need(f"{side}_attention_heads"),
            "bias": True,
            "dropout": config.get("attention_dropout", 0.0),
        },
        "ffn": {
            "activation": activation(config, "activation_function", "gelu"),
            "hidden": config.need(f"{side}_ffn_dim"),
            "bias": True,
            "dropout": config.get("activation_dropout", 0.0),
        },
    }


def write(said: Said) -> Table:
    """The keys of `read`."""
    encoder = said.top.get("encoder", {"depth": None, "each": said.blocks})
    sides = {"decoder": (said.top["depth"], said.first), "encoder": (encoder["depth"], encoder["each"][0])}
    attention, ffn = said.first["attention"], said.first["ffn"]
    return {
        "is_encoder_decoder": True,
        "vocab_size": said.top["vocab"],
        "d_model": said.top["width"],
        **{f"{side}_layers": depth for side, (depth, _) in sides.items()},
        **{f"{side}_attention_heads": block["attention"].get("heads") for side, (_, block) in sides.items()},
        **{f"{side}_ffn_dim": block["ffn"].get("hidden") for side, (_, block) in sides.items()},
        "activation_function": activation_name(ffn, "gelu", "gelu_new", "swish"),
        "attention_dropout": attention.get("dropout"),
        "activation_dropout": ffn.get("dropout"),
        "dropout": said.first["dropout"],
        "init_std": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
        "scale_embedding": said.top["scale_embedding"],
    }


def keys(architecture: Architecture) -> list[Key]:
    reader = architecture.reader
    return [
        key("embed.weight", "model.shared.weight"),
        key("encoder.embed.weight", "model.encoder.embed_tokens.weight"),
        key("decoder.embed.weight", "model.decoder.embed_tokens.weight"),
        *_tower("encoder.", "model.encoder.", 0 if reader is None else reader.depth),
        *_tower("", "model.decoder.", architecture.depth),
        key("head.weight", "lm_head.weight"),
        key("head.bias", "final_logits_bias", form=ROW),
    ]


def _tower(ours: str, theirs: str, depth: int) -> list[Key]:
    return [
        key(f"{ours}positions.0.table.weight", f"{theirs}embed_positions.weight", form=Offset(OFFSET)),
        *norm(f"{ours}embed_norm", f"{theirs}layernorm_embedding"),
        *(one for n in range(depth) for one in _block_keys(f"{ours}blocks.{n}.", f"{theirs}layers.{n}.")),
    ]


def _block_keys(block: str, layer: str) -> list[Key]:
    return [
        *module(f"{block}attention.qkv", *(f"{layer}self_attn.{part}_proj" for part in "qkv")),
        *module(f"{block}attention.o", f"{layer}self_attn.out_proj"),
        *norm(f"{block}attention_join.norm_out", f"{layer}self_attn_layer_norm"),
        *module(f"{block}cross.q", f"{layer}encoder_attn.q_proj"),
        *module(f"{block}cross.kv", *(f"{layer}encoder_attn.{part}_proj" for part in "kv")),
        *module(f"{block}cross.o", f"{layer}encoder_attn.out_proj"),
        *norm(f"{block}cross_join.norm_out", f"{layer}encoder_attn_layer_norm"),
        *module(f"{block}ffn.up", f"{layer}fc1"),
        *module(f"{block}ffn.down", f"{layer}fc2"),
        *norm(f"{block}ffn_join.norm_out", f"{layer}final_layer_norm"),
    ]


def read_bart(config: Config) -> Table:
    config.only("normalize_embedding", (True,), "embeddings of this family are normalised")
    config.only("static_position_embeddings", (False,), "positions of this family are learned")
    table = read(config)
    positions = {"kind": "learned", "length": config.get("max_position_embeddings", 1024)}
    return {**table, "position": positions, "embed_norm": table["norm"]}


def write_bart(said: Said) -> Table:
    (position, *_) = said.first["position"]
    return {**write(said), "max_position_embeddings": position.get("length")}


def read_marian(config: Config) -> Table:
    config.only("normalize_embedding", (False,), "embeddings of this family are not normalised")
    config.only("static_position_embeddings", (True,), "positions of this family are sines")
    table = read(config)
    config.only("decoder_vocab_size", (table["vocab"],), "both sides have one table of tokens")
    return {**table, "position": {"kind": "sinusoidal", "layout": "half"}}


SINES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
BART = Family("bart", "BartForConditionalGeneration", read_bart, write_bart, keys, "model.")
MARIAN = Family("marian", "MarianMTModel", read_marian, write, keys, "model.", SINES)
