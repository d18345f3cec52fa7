"""Gemma 2 and Gemma 3 (text): norms on both sides of each sublayer, gains held as 1 + w, blocks with and without a window."""

from __future__ import annotations

from typing import Any

from isoflop.interop.config import Config
from isoflop.interop.families.common import (
    Table,
    activation,
    activation_name,
    layer_types,
    rope,
    rope_keys,
    rope_of,
    rope_parameters,
    sliding,
    windows,
)
from isoflop.interop.family import Family, Said, changes
from isoflop.interop.keymap import key, module, norm
from isoflop.spec import SpecError

LAYER = "model.layers.{n}."
KEYS = [
    key("embed.weight", "model.embed_tokens.weight"),
    *module("blocks.{n}.attention.qkv", *(f"{LAYER}self_attn.{part}_proj" for part in "qkv")),
    *norm("blocks.{n}.attention.q_norm", f"{LAYER}self_attn.q_norm"),
    *norm("blocks.{n}.attention.k_norm", f"{LAYER}self_attn.k_norm"),
    *module("blocks.{n}.attention.o", f"{LAYER}self_attn.o_proj"),
    *norm("blocks.{n}.attention_join.norm_in", f"{LAYER}input_layernorm"),
    *norm("blocks.{n}.attention_join.norm_branch", f"{LAYER}post_attention_layernorm"),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}pre_feedforward_layernorm"),
    *norm("blocks.{n}.ffn_join.norm_branch", f"{LAYER}post_feedforward_layernorm"),
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.up_proj"),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.down_proj"),
    *norm("final_norm", "model.norm"),
    key("head.weight", "lm_head.weight"),
]


def _read(config: Config, scores_cap: float | None, logits_cap: float | None) -> Table:
    config.only("use_bidirectional_attention", (False,), "no position sees a later one")
    width, heads = config.need("hidden_size"), config.need("num_attention_heads")
    if width % heads:
        raise SpecError.at("num_attention_heads", f"must divide hidden_size {width} in this family, came {heads}")
    scores_cap = config.optional("attn_logit_softcapping", scores_cap)
    logits_cap = config.optional("final_logit_softcapping", logits_cap)
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.need("num_hidden_layers"),
        "norm": {"kind": "rms", "eps": config.get("rms_norm_eps", 1e-6), "unit_offset": True},
        "join": "sandwich",
        "attention": {
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads", 4),
            "head_width": config.get("head_dim", 256),
            "scale": config.get("query_pre_attn_scalar", 256) ** -0.5,
            "bias": config.get("attention_bias", False),
            "dropout": config.get("attention_dropout", 0.0),
            **({"softcap": scores_cap} if scores_cap else {}),
        },
        "ffn": {
            "kind": "glu",
            "activation": activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            "hidden": config.need("intermediate_size"),
        },
        "head": {"softcap": logits_cap} if logits_cap else {},
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "scale_embedding": True,
        "tie_head": config.get("tie_word_embeddings", True),
    }


def _by_block(config: Config, depth: int, every: int, local: Table, whole: Table) -> Table:
    """The fields of most blocks, and `blocks` for the rest: those with a window and those without, the last of each few."""
    kinds = ["full_attention" if (number + 1) % every == 0 else "sliding_attention" for number in range(depth)]
    inside = sliding(config, depth, kinds)
    outside = [number for number in range(depth) if number not in inside]
    if len(inside) > len(outside):
        window = {"attention": {"window": "default"}} if outside else {}
        return {**local, "blocks": changes(outside, depth, {**whole, **window})}
    return {**whole, "blocks": changes(inside, depth, local)}


def _windowed(table: Table, fields: Table) -> Table:
    attention = {**table["attention"], **fields.pop("attention", {})}
    return {**table, **fields, "attention": attention}


def read_gemma2(config: Config) -> Table:
    table = _read(config, 50.0, 30.0)
    window = {"attention": {"window": config.optional("sliding_window", 4096)}}
    return _windowed({**table, "position": rope(config)}, _by_block(config, table["depth"], 2, window, {}))


def read_gemma3(config: Config) -> Table:
    table = _read(config, None, None)
    table["attention"]["qk_norm"] = table["norm"]
    window, every = (
        config.optional("sliding_window", 4096),
        config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6)),
    )
    local, whole = _two_ropes(config)
    fields = _by_block(
        config, table["depth"], every, {"position": local, "attention": {"window": window}}, {"position": whole}
    )
    return _windowed(table, fields)


def _two_ropes(config: Config) -> tuple[Table, Table]:
    """The positions of blocks with a window, and of those without."""
    parameters, length = config.get("rope_parameters", {}), config.get("max_position_embeddings")
    near, far = config.get("rope_local_base_freq", 1e4), config.get("rope_theta", 1e6)
    scaling = config.get("rope_scaling", {})
    local = rope_of(parameters.get("sliding_attention") or {}, near, 1.0, length)
    return local, rope_of(parameters.get("full_attention") or scaling, far, 1.0, length)


def _write(said: Said) -> Table:
    attention, ffn = said.first["attention"], said.first["ffn"]
    return {
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "num_key_value_heads": attention["kv_heads"],
        "head_dim": attention["head_width"],
        "query_pre_attn_scalar": round(attention["scale"] ** -2),
        "attn_logit_softcapping": attention.get("softcap"),
        "final_logit_softcapping": said.top["head"].get("softcap"),
        "attention_bias": attention.get("bias") is True,
        "attention_dropout": attention.get("dropout"),
        "intermediate_size": ffn.get("hidden"),
        "hidden_activation": activation_name(ffn, "gelu_pytorch_tanh"),
        "rms_norm_eps": said.top["norm"].get("eps"),
        "initializer_range": said.top["init"].get("std"),
        "sliding_window": windows(said.blocks) or 4096,  # their library wants one though no block has it
        "layer_types": layer_types(said.blocks),
        "tie_word_embeddings": said.top["tie_head"],
    }


def write_gemma2(said: Said) -> Table:
    return {**_write(said), **rope_keys(said.first["position"])}


def write_gemma3(said: Said) -> Table:
    kinds = dict(zip(layer_types(said.blocks), said.blocks, strict=True))
    parameters: dict[str, Any] = {kind: rope_parameters(block["position"]) for kind, block in kinds.items()}
    return {**_write(said), "rope_parameters": parameters}


GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", read_gemma2, write_gemma2, lambda _: KEYS, "model.")
GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", read_gemma3, write_gemma3, lambda _: KEYS, "model.")
