"""ModernBERT: an encoder with a norm before each sublayer, rotary positions, gated feed-forwards and local attention.

The first block's attention reads the embeddings, whose norm is its own. A window is said as both sides together. In training
they have a dropout on the output of attention, of the rate of that on its weights, which is left out here.
"""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import (
    Table,
    activation,
    activation_name,
    layer_types,
    rope_of,
    rope_parameters,
    sliding,
    windows,
)
from isoflop.interop.family import Family, Said, changes
from isoflop.interop.keymap import key, module, norm

LAYER = "model.layers.{n}."
KEYS = [
    key("embed.weight", "model.embeddings.tok_embeddings.weight"),
    *norm("embed_norm", "model.embeddings.norm"),
    *norm("blocks.{n}.attention_join.norm_in", f"{LAYER}attn_norm"),
    *module("blocks.{n}.attention.qkv", f"{LAYER}attn.Wqkv"),
    *module("blocks.{n}.attention.o", f"{LAYER}attn.Wo"),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}mlp_norm"),
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.Wi"),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.Wo"),
    *norm("final_norm", "model.final_norm"),
    *module("head.before.dense", "head.dense"),
    *norm("head.before.norm", "head.norm"),
    key("head.weight", "decoder.weight"),
    key("head.bias", "decoder.bias"),
]
CLASSES = {"linear": "ModernBertModel", "transform": "ModernBertForMaskedLM"}
THETAS = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
WITHOUT_EFFECT = """classifier_pooling classifier_dropout deterministic_flash_attn sparse_prediction initializer_cutoff_factor
    sparse_pred_ignore_index reference_compile repad_logits_with_grad"""


def read(config: Config) -> Table:
    config.ignore(*WITHOUT_EFFECT.split())
    config.only("position_embedding_type", ("absolute",), "a word of their library's that this family does not heed")
    depth = config.need("num_hidden_layers")
    layer_norm = {"kind": "layer", "eps": config.get("norm_eps", 1e-5), "bias": config.get("norm_bias", False)}
    embedding = config.get("embedding_dropout", 0.0)
    positions = _positions(config)
    return {
        "form": "encoder",
        "vocab": config.need("vocab_size"),
        "width": config.need("hidden_size"),
        "depth": depth,
        "position": positions["full_attention"],
        "norm": layer_norm,
        "embed_norm": layer_norm,
        "attention": {
            "heads": config.need("num_attention_heads"),
            "bias": config.get("attention_bias", False),
            "dropout": config.get("attention_dropout", 0.0),
        },
        "ffn": {
            "kind": "glu",
            "activation": activation(config, "hidden_activation", "gelu"),
            "hidden": config.need("intermediate_size"),
            "bias": config.get("mlp_bias", False),
            "dropout": config.get("mlp_dropout", 0.0),
        },
        "dropout": embedding,
        "blocks": [
            *(changes(range(depth), depth, {"dropout": 0.0}) if embedding else []),
            *_local(config, depth, positions["sliding_attention"]),
            {"at": "0", "attention_norm": "none"},
        ],
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "head": _head(config, layer_norm),
        "tie_head": config.get("tie_word_embeddings", True),
    }


def _head(config: Config, layer_norm: Table) -> Table:
    transform = {
        "kind": "transform",
        "activation": activation(config, "classifier_activation", "gelu"),
        "norm": layer_norm,
        "dense_bias": config.get("classifier_bias", False),
        "bias": config.get("decoder_bias", True),
    }
    return {"kind": "linear"} if CLASSES["linear"] in config.get("architectures", ()) else transform


def _positions(config: Config) -> dict[str, Table]:
    """The rotary positions of each type of block, in the words of any version."""
    parameters = config.get("rope_parameters", {})
    config.only("rope_scaling", (), "positions are not scaled in this family")
    length = config.get("max_position_embeddings")
    thetas = {kind: config.get(name, default) for kind, (name, default) in THETAS.items()}
    return {kind: rope_of(parameters.get(kind) or {}, theta, 1.0, length) for kind, theta in thetas.items()}


def _local(config: Config, depth: int, position: Table) -> list[Table]:
    """What differs in the blocks with a window: half of it on each side, and the query between."""
    every = config.get("global_attn_every_n_layers", 3)
    numbers = sliding(
        config, depth, ["sliding_attention" if number % every else "full_attention" for number in range(depth)]
    )
    half = config.get("local_attention", 128) // 2
    return changes(numbers, depth, {"attention": {"window": half + 1}, "position": position})


def write(said: Said) -> Table:
    attention, ffn, head = said.first["attention"], said.first["ffn"], said.top["head"]
    window = windows(said.blocks)
    kinds = layer_types(said.blocks)
    parameters = dict(zip(kinds, (rope_parameters(block["position"]) for block in said.blocks), strict=True))
    return {
        "architectures": [CLASSES.get(head["kind"])],
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "intermediate_size": ffn.get("hidden"),
        "hidden_activation": activation_name(ffn, "gelu"),
        "norm_eps": said.top["norm"].get("eps"),
        "norm_bias": said.top["norm"].get("bias"),
        "attention_bias": attention.get("bias") is True,
        "attention_dropout": attention.get("dropout"),
        "mlp_bias": ffn.get("bias"),
        "mlp_dropout": ffn.get("dropout"),
        "embedding_dropout": 0.0,
        "layer_types": kinds,
        "local_attention": 2 * (window - 1) if window else 128,
        "rope_parameters": {kind: table for kind, table in parameters.items() if table},
        "classifier_activation": activation_name(head) or "gelu",
        "classifier_bias": head.get("dense_bias", False),
        "decoder_bias": head.get("bias"),
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
    }


FREQUENCIES = ("model.rotary_emb.*", "model.layers.*.attn.rotary_emb.inv_freq")
MODERNBERT = Family("modernbert", CLASSES["transform"], read, write, lambda _: KEYS, "model.", FREQUENCIES)
