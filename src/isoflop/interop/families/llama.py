"""Llama and its kin: RMSNorm before each sublayer, rotary positions, a gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable

from isoflop.interop.config import Config
from isoflop.interop.families.common import (
    Table,
    activation,
    activation_name,
    layer_types,
    rope,
    rope_keys,
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
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.up_proj"),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.down_proj"),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}post_attention_layernorm"),
    *norm("final_norm", "model.norm"),
    key("head.weight", "lm_head.weight"),
]


def read(config: Config) -> Table:
    """What all of them have."""
    heads = config.need("num_attention_heads")
    attention = {
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads", heads),
        "dropout": config.get("attention_dropout", 0.0),
    }
    head_width = config.get("head_dim")
    return {
        "vocab": config.need("vocab_size"),
        "width": config.need("hidden_size"),
        "depth": config.need("num_hidden_layers"),
        "position": rope(config),
        "norm": {"kind": "rms", "eps": config.get("rms_norm_eps", 1e-6), "cast": "before_gain"},
        "attention": {**attention, **({"head_width": head_width} if head_width else {})},
        "ffn": {
            "kind": "glu",
            "activation": activation(config, "hidden_act", "silu"),
            "hidden": config.need("intermediate_size"),
        },
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "tie_head": config.get("tie_word_embeddings", False),
    }


def write(said: Said) -> Table:
    """The keys of `read`."""
    attention, ffn = said.first["attention"], said.first["ffn"]
    return {
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "num_key_value_heads": attention["kv_heads"],
        "head_dim": attention["head_width"],
        "intermediate_size": ffn.get("hidden"),
        "hidden_act": activation_name(ffn, "silu", "gelu_pytorch_tanh"),
        "rms_norm_eps": said.top["norm"].get("eps"),
        "initializer_range": said.top["init"].get("std"),
        "attention_dropout": attention.get("dropout"),
        "tie_word_embeddings": said.top["tie_head"],
        **rope_keys(said.first["position"]),
    }


def read_llama(config: Config) -> Table:
    config.only(
        "pretraining_tp", (1,), "the slices of tensor parallel training are joined again by none but their code"
    )
    table = read(config)
    if table["width"] % table["attention"]["heads"]:
        raise SpecError.at("num_attention_heads", f"must divide hidden_size {table['width']} in this family")
    table["attention"]["bias"] = config.get("attention_bias", False)
    table["ffn"]["bias"] = config.get("mlp_bias", False)
    return table


def write_llama(said: Said) -> Table:
    biases = {"attention_bias": said.first["attention"].get("bias") is True, "mlp_bias": said.first["ffn"].get("bias")}
    return {**write(said), **biases}


def read_mistral(config: Config) -> Table:
    config.only("layer_types", (), "every block of this family is alike")
    table = read(config)
    window = config.optional("sliding_window", 4096)
    table["attention"] |= {"window": window} if window else {}
    return table


def write_mistral(said: Said) -> Table:
    return {**write(said), "sliding_window": said.first["attention"].get("window")}


def windowed(read_attention: Callable[[Config, Table], Table]) -> Callable[[Config], Table]:
    """The reader of a family in which some blocks have a window."""

    def read_windowed(config: Config) -> Table:
        table = read(config)
        table["attention"] |= read_attention(config, table)
        table["blocks"] = _windows(config, table["depth"])
        return table

    return read_windowed


def _windows(config: Config, depth: int) -> list[Table]:
    used, window = config.get("use_sliding_window", False), config.optional("sliding_window", 4096)
    first = config.get("max_window_layers", 28)
    kinds = ["sliding_attention" if used and number >= first else "full_attention" for number in range(depth)]
    numbers = sliding(config, depth, kinds)
    if not used or not window:
        return []
    return changes(numbers, depth, {"attention": {"window": window}})


def write_windowed(said: Said) -> Table:
    window = windows(said.blocks)
    kinds = {"layer_types": layer_types(said.blocks), "sliding_window": window, "max_window_layers": said.top["depth"]}
    return {**write(said), "use_sliding_window": window is not None, **kinds}


def _biased_qkv(config: Config, table: Table) -> Table:
    return {"bias": "qkv"}


def _normed_qk(config: Config, table: Table) -> Table:
    width = table["attention"].get("head_width", 128)
    return {"bias": config.get("attention_bias", False), "head_width": width, "qk_norm": table["norm"]}


def write_qwen3(said: Said) -> Table:
    return {**write_windowed(said), "attention_bias": said.first["attention"].get("bias") is True}


FREQUENCIES = ("model.layers.*.self_attn.rotary_emb.inv_freq",)
LLAMA = Family("llama", "LlamaForCausalLM", read_llama, write_llama, lambda _: KEYS, "model.", FREQUENCIES)
MISTRAL = Family("mistral", "MistralForCausalLM", read_mistral, write_mistral, lambda _: KEYS, "model.", FREQUENCIES)
QWEN2 = Family(
    "qwen2", "Qwen2ForCausalLM", windowed(_biased_qkv), write_windowed, lambda _: KEYS, "model.", FREQUENCIES
)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", windowed(_normed_qk), write_qwen3, lambda _: KEYS, "model.", FREQUENCIES)
