"""Rows of a fused q, k, v are read in another order than they were written: by head, or all q, all k, all v."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from isoflop.interop import import_model
from isoflop.interop.keymap import GROUPED
from isoflop.model.slots import Heads

WIDTH = 8
BY_GROUP = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
"""Rows 0 1, 2 3 are two queries, 4 5 their key, 6 7 their value; 8 to 15 are those of the second group."""
BY_HEAD = [6 * head + 2 * part + row for part, head, row in itertools.product(range(3), range(4), range(2))]
"""Rows 0 1 are a query, 2 3 its key, 4 5 its value; then those of the next head."""
SIZES: dict[str, Any] = {"vocab_size": 11, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4}
LAYOUTS: dict[str, tuple[type[Any], Any, str, list[int]]] = {
    "falcon": (
        FalconForCausalLM,
        FalconConfig(**SIZES, new_decoder_architecture=True, num_kv_heads=2, bias=True),
        "transformer.h.0.self_attention.query_key_value",
        BY_GROUP,
    ),
    "neox": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(
            **SIZES,
            intermediate_size=8,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        ),
        "gpt_neox.layers.0.attention.query_key_value",
        BY_HEAD,
    ),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(vocab_size=11, n_embd=WIDTH, n_layer=1, n_head=4, n_positions=8),
        "transformer.h.0.attn.c_attn",
        list(range(24)),
    ),
}


def test_rows_by_head_become_all_q_all_k_all_v() -> None:
    """Four query heads and two of keys and values, each of two rows; row r is filled with r."""
    heads, theirs = Heads.alike(4, 2, 2), torch.arange(16).float()[:, None].expand(16, 3)
    ours = GROUPED.ours(theirs, heads)
    assert ours[:, 0].tolist() == BY_GROUP
    assert torch.equal(GROUPED.theirs(ours, heads), theirs)
    assert GROUPED.ours(theirs[:, 0], heads).tolist() == BY_GROUP, "a bias follows its matrix"


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_family_is_read_by_its_own_layout(name: str, tmp_path: Path) -> None:
    cls, config, fused, expected = LAYOUTS[name]
    cls(config).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    rows = torch.arange(float(len(expected)))
    filled = rows[:, None].expand(-1, WIDTH)
    weights[f"{fused}.weight"] = (filled.t() if name == "gpt2" else filled).contiguous()
    weights[f"{fused}.bias"] = rows
    save_file(weights, tmp_path / "model.safetensors")
    qkv = import_model(tmp_path).model.blocks[0].attention.qkv
    assert qkv.weight[:, 0].tolist() == expected
    assert qkv.bias.tolist() == expected
