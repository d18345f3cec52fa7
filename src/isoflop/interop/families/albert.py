"""ALBERT: BERT with a narrow table of tokens and one block for a whole group of depths."""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.bert import head_keys, read_encoder, write_encoder
from isoflop.interop.families.common import Table
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import Key, key, module, norm
from isoflop.model import Architecture
from isoflop.model.share import Groups
from isoflop.spec import SpecError

BARE, WHOLE = "AlbertModel", "AlbertForMaskedLM"
EMBEDDINGS = "albert.embeddings."


def read(config: Config) -> Table:
    config.only("inner_group_num", (1,), "a group is one block")
    config.ignore("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    config.only(
        "architectures", ([WHOLE],), "a bare model has no map from the stream to the table, so no way to logits"
    )
    table = read_encoder(config, BARE)
    depth, groups = table["depth"], config.get("num_hidden_groups", 1)
    _check_groups(depth, groups)
    embed = {"kind": "factorised", "width": config.get("embedding_size", 128), "maps": "sum", "bias": True}
    return {**table, "embed": embed, "share": {"kind": "groups", "count": groups}}


def _check_groups(depth: int, groups: int) -> None:
    """Their group of a block is a floor of a quotient in fp64, which rounding can put one lower than the exact one."""
    if not 1 <= groups <= depth:
        raise SpecError.at("num_hidden_groups", f"must be 1 to num_hidden_layers {depth}, came {groups}")
    theirs = [int(block / (depth / groups)) for block in range(depth)]
    if tuple(map(theirs.index, theirs)) != Groups(count=groups).owners(depth):
        raise SpecError.at("num_hidden_groups", f"{groups} groups of {depth} blocks are {theirs} by their rounding")


def write(said: Said) -> Table:
    return {
        **write_encoder(said, {"transform": WHOLE}),
        "embedding_size": said.top["embed"].get("width"),
        "num_hidden_groups": said.top["share"].get("count"),
        "inner_group_num": 1,
    }


def keys(architecture: Architecture) -> list[Key]:
    owners = sorted(set(architecture.share.owners(architecture.depth)))
    return [
        key("embed.weight", f"{EMBEDDINGS}word_embeddings.weight"),
        key("positions.0.table.weight", f"{EMBEDDINGS}position_embeddings.weight"),
        key("types.weight", f"{EMBEDDINGS}token_type_embeddings.weight"),
        *norm("embed_norm", f"{EMBEDDINGS}LayerNorm"),
        *module("sum_map", "albert.encoder.embedding_hidden_mapping_in"),
        *(one for group, owner in enumerate(owners) for one in _block_keys(group, owner)),
        *head_keys(
            architecture, "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"
        ),
    ]


def _block_keys(group: int, owner: int) -> list[Key]:
    block, layer = f"blocks.{owner}.", f"albert.encoder.albert_layer_groups.{group}.albert_layers.0."
    return [
        *module(f"{block}attention.qkv", *(f"{layer}attention.{part}" for part in ("query", "key", "value"))),
        *module(f"{block}attention.o", f"{layer}attention.dense"),
        *norm(f"{block}attention_join.norm_out", f"{layer}attention.LayerNorm"),
        *module(f"{block}ffn.up", f"{layer}ffn"),
        *module(f"{block}ffn.down", f"{layer}ffn_output"),
        *norm(f"{block}ffn_join.norm_out", f"{layer}full_layer_layer_norm"),
    ]


UNUSED = (
    "albert.embeddings.position_ids",
    "albert.pooler.*",
    "sop_classifier.*",
    "predictions.bias",
    "predictions.decoder.bias",
)
ALBERT = Family("albert", WHOLE, read, write, keys, "albert.", UNUSED)
