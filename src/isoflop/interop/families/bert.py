"""BERT and RoBERTa: encoders with a norm behind each sublayer, learned positions and token types.

A file of the bare model has no head; it is read with the tied matrix for one, whose logits mean nothing: its use is `features`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table, activation, activation_name
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import AS_IS, Form, Key, Offset, key, module, norm
from isoflop.model import Architecture

NO_TYPES, POSITIONS = "tokens of an encoder see all others", "positions must be learned vectors, one for each place"
GELU = {"kind": "gelu", "form": "exact"}
PADDING = 1
"""RoBERTa's id of padding. Its table has a row for padding, and one for each id before that, ahead of the first position."""


def read_encoder(config: Config, bare: str) -> Table:
    """What BERT, RoBERTa and ALBERT have; `bare` is the class that has no head."""
    config.only("is_decoder", (False,), NO_TYPES)
    config.only("position_embedding_type", ("absolute",), POSITIONS)
    layer_norm = {"kind": "layer", "eps": config.get("layer_norm_eps", 1e-12)}
    head = {
        "kind": "transform",
        "activation": activation(config, "hidden_act", "gelu"),
        "norm": layer_norm,
        "bias": True,
    }
    headless = bare in config.get("architectures", ())
    return {
        "form": "encoder",
        "vocab": config.need("vocab_size"),
        "width": config.need("hidden_size"),
        "depth": config.need("num_hidden_layers"),
        "position": {"kind": "learned", "length": config.get("max_position_embeddings", 512)},
        "types": config.get("type_vocab_size", 2),
        "norm": layer_norm,
        "embed_norm": layer_norm,
        "join": "post",
        "attention": {
            "heads": config.need("num_attention_heads"),
            "bias": True,
            "dropout": config.get("attention_probs_dropout_prob", 0.1),
        },
        "ffn": {
            "activation": activation(config, "hidden_act", "gelu"),
            "hidden": config.need("intermediate_size"),
            "bias": True,
        },
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "head": "linear" if headless else head,
        "tie_head": config.get("tie_word_embeddings", True),
    }


def write_encoder(said: Said, classes: Mapping[str, str]) -> Table:
    """The keys of `read_encoder`; `classes` by the kind of the head."""
    attention, ffn = said.first["attention"], said.first["ffn"]
    (position, *_) = said.first["position"]
    return {
        "architectures": [classes.get(said.top["head"]["kind"])],
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "intermediate_size": ffn.get("hidden"),
        "hidden_act": activation_name(ffn, "gelu", "gelu_new"),
        "max_position_embeddings": position.get("length"),
        "type_vocab_size": said.top.get("types"),
        "layer_norm_eps": said.top["norm"].get("eps"),
        "attention_probs_dropout_prob": attention.get("dropout"),
        "hidden_dropout_prob": said.first["dropout"],
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
    }


def keys_of(
    prefix: str, head: Callable[[Architecture], list[Key]], positions: Form = AS_IS
) -> Callable[..., list[Key]]:
    """The key map of a family; `positions`: how the table of positions lies."""
    embeddings, layer = f"{prefix}embeddings.", f"{prefix}encoder.layer.{{n}}."
    body = [
        key("embed.weight", f"{embeddings}word_embeddings.weight"),
        key("positions.0.table.weight", f"{embeddings}position_embeddings.weight", form=positions),
        key("types.weight", f"{embeddings}token_type_embeddings.weight"),
        *norm("embed_norm", f"{embeddings}LayerNorm"),
        *module("blocks.{n}.attention.qkv", *(f"{layer}attention.self.{part}" for part in ("query", "key", "value"))),
        *module("blocks.{n}.attention.o", f"{layer}attention.output.dense"),
        *norm("blocks.{n}.attention_join.norm_out", f"{layer}attention.output.LayerNorm"),
        *module("blocks.{n}.ffn.up", f"{layer}intermediate.dense"),
        *module("blocks.{n}.ffn.down", f"{layer}output.dense"),
        *norm("blocks.{n}.ffn_join.norm_out", f"{layer}output.LayerNorm"),
    ]
    return lambda architecture: [*body, *head(architecture)]


def head_keys(architecture: Architecture, dense: str, layer_norm: str, matrix: str, bias: str) -> list[Key]:
    """The keys of a transform head. Where the matrix is tied the bias is held apart from it, where it is not, beside it."""
    return [
        *module("head.before.dense", dense),
        *norm("head.before.norm", layer_norm),
        key("head.weight", f"{matrix}.weight"),
        key("head.bias", bias if architecture.tie_head else f"{matrix}.bias"),
    ]


# ---------------------------------------------------------------------------------------------------- BERT

TRANSFORM, DECODER = "cls.predictions.transform", "cls.predictions.decoder"


def bert_head(architecture: Architecture) -> list[Key]:
    return head_keys(architecture, f"{TRANSFORM}.dense", f"{TRANSFORM}.LayerNorm", DECODER, "cls.predictions.bias")


BERT = Family(
    "bert",
    "BertForMaskedLM",
    partial(read_encoder, bare="BertModel"),
    partial(write_encoder, classes={"linear": "BertModel", "transform": "BertForMaskedLM"}),
    keys_of("bert.", bert_head),
    "bert.",
    (
        "bert.embeddings.position_ids",
        "bert.pooler.*",
        "pooler.*",
        "cls.seq_relationship.*",
        "cls.predictions.bias",
        "cls.predictions.decoder.bias",
    ),
)


# ---------------------------------------------------------------------------------------------------- RoBERTa and its kin


def read_roberta(config: Config, bare: str) -> Table:
    config.only("pad_token_id", (PADDING,), "the rows ahead of the first position are those of this id")
    table = read_encoder(config, bare)
    length = table["position"]["length"] - PADDING - 1
    head = table["head"] if isinstance(table["head"], str) else {**table["head"], "activation": GELU}
    return {**table, "position": {"kind": "learned", "length": length}, "head": head}


def write_roberta(said: Said, classes: Mapping[str, str]) -> Table:
    table = write_encoder(said, classes)
    length = table["max_position_embeddings"]
    return {**table, "max_position_embeddings": length and length + PADDING + 1, "pad_token_id": PADDING}


def roberta_head(architecture: Architecture) -> list[Key]:
    return head_keys(architecture, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")


def roberta(name: str, stem: str) -> Family:
    """RoBERTa under one of its names."""
    bare, whole = f"{stem}Model", f"{stem}ForMaskedLM"
    return Family(
        name,
        whole,
        partial(read_roberta, bare=bare),
        partial(write_roberta, classes={"linear": bare, "transform": whole}),
        keys_of("roberta.", roberta_head, Offset(PADDING + 1)),
        "roberta.",
        ("roberta.embeddings.position_ids", "roberta.pooler.*", "pooler.*", "lm_head.bias", "lm_head.decoder.bias"),
    )


ROBERTA = roberta("roberta", "Roberta")
XLM_ROBERTA = roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = roberta("camembert", "Camembert")
