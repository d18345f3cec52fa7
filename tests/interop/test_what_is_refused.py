"""What cannot be read or said is refused by name, and nothing that is read can run code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isoflop import Architecture, build, load
from isoflop.interop import FAMILIES, export_model, import_model
from isoflop.interop.config import Config
from isoflop.model.slots import Attention
from isoflop.spec import SpecError
from models import FP32, some_tokens

SIZES: dict[str, Any] = {"vocab": 29, "width": 24, "depth": 2, "attention.heads": 4, "ffn.hidden": 20}
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def llama(**changes: Any) -> Architecture:
    return load("llama", **{**SIZES, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama as it is exported."""
    export_model(build(llama()), tmp_path / "public")
    return tmp_path / "public"


def rewrite(folder: Path, **changes: Any) -> None:
    table = json.loads((folder / CONFIG).read_text())
    table = {name: value for name, value in {**table, **changes}.items() if value is not ...}
    (folder / CONFIG).write_text(json.dumps(table))


CONFIGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"clip_qkv": 8.0}, ["clip_qkv: is no key that this family can say, came 8.0"]),
    ({"residual_multiplier": 0.2, "mystery": [1]}, ["residual_multiplier: is no key", "mystery: is no key"]),
    ({"hidden_act": "gelu10"}, ["hidden_act: must be one of gelu", "came 'gelu10'"]),
    ({"pretraining_tp": 2}, ["pretraining_tp: must be 1, came 2"]),
    ({"hidden_size": ...}, ["hidden_size: must be given"]),
    ({"hidden_size": ..., "hidden_sizes": 24}, ["hidden_size: must be given", "Did you mean 'hidden_sizes'?"]),
    ({"num_attention_heads": 5}, ["num_attention_heads: must divide hidden_size 24"]),
    ({"num_key_value_heads": 3}, ["attention.kv_heads: must divide heads 4, came 3"]),
    ({"quantization_config": {"bits": 4}}, ["quantization_config: must be absent", "quantised weights"]),
    ({"add_cross_attention": True}, ["add_cross_attention: must be False, came True"]),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["rope_parameters.rope_type", "length of the text"]),
    ({"rope_parameters": {"rope_type": "yarn"}}, ["rope_parameters.factor: must be given"]),
    ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, ["rope_parameters.mrope_section: is no key"]),
    ({"rope_parameters": {"rope_type": "turns"}}, ["must be one of default, linear, llama3, yarn, came 'turns'"]),
    ({"model_type": "lama"}, ["'lama' is no family", "Did you mean 'llama'?"]),
    ({"model_type": ...}, ["must name a model_type"]),
    ({"architectures": ["LlamaForSequenceClassification"]}, ["architectures: must be LlamaForCausalLM for llama"]),
]


@pytest.mark.parametrize(("changes", "words"), CONFIGS, ids=lambda value: ",".join(map(str, value))[:40])
def test_a_config_that_cannot_be_said(folder: Path, changes: dict[str, Any], words: list[str]) -> None:
    rewrite(folder, **changes)
    with pytest.raises(SpecError) as caught:
        import_model(folder)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("mistral", "layer_types", ["full_attention"]),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt_neox", "rope_parameters", {"rope_type": "longrope"}),
        ("opt", "word_embed_proj_dim", 512),
        ("opt", "_remove_final_layer_norm", True),
        ("mpt", "attn_config", {"clip_qkv": 6.0}),
        ("mpt", "attn_config", {"alibi": False}),
        ("mpt", "attn_config", {"alibi_bias_max": 16}),
        ("mpt", "no_bias", False),
        ("mpt", "logit_scale", 0.5),
        ("falcon", "alibi", True),
        ("falcon", "num_ln_in_parallel_attn", 2),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma3_text", "layer_types", ["full_attention", "chunked_attention"]),
        ("qwen2", "layer_types", ["full_attention"]),
    ],
)
def test_what_a_family_has_and_we_do_not(family: str, key: str, value: Any) -> None:
    sizes = {
        "vocab_size": 29, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
        "n_embd": 24, "n_layer": 2, "n_head": 4, "d_model": 24, "n_heads": 4, "n_layers": 2, "ffn_dim": 20,
        "max_position_embeddings": 64,
    }  # fmt: skip
    with pytest.raises(SpecError, match=key):
        FAMILIES[family].read(Config({**sizes, key: value}))


# ------------------------------------------------------------------------------------------------------ tensors


def tamper(folder: Path, change: Any) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def _rename(weights: dict[str, Any]) -> None:
    weights["model.layers.1.mlp.gate.weight"] = weights.pop("model.layers.1.mlp.gate_proj.weight")


def _swap(weights: dict[str, Any]) -> None:
    weights["model.layers.0.mlp.down_proj.weight"] = weights["model.layers.0.mlp.down_proj.weight"].T.contiguous()


def _uneven(weights: dict[str, Any]) -> None:
    """As many rows in all, but not those of q, k and v."""
    q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
    weights[q], weights[k] = weights[q][:-4].contiguous(), torch.cat([weights[k], weights[q][-4:]])


TENSORS = [
    (lambda w: w.pop("model.norm.weight"), ["model.norm.weight: is missing"]),
    (_rename, ["gate_proj.weight: is missing. Did you mean 'model.layers.1.mlp.gate.weight'?",
               "model.layers.1.mlp.gate.weight: is no tensor of this model. Did you mean"]),
    (lambda w: w.update({"model.layers.0.mlp.up_proj.bias": torch.zeros(20)}), ["mlp.up_proj.bias: is no tensor"]),
    (_swap, ["mlp.down_proj.weight: has shape (20, 24), which makes no blocks.0.ffn.down.weight of (24, 20)"]),
    (_uneven, ["q_proj.weight: must have 24 rows, came 20", "k_proj.weight: must have 24 rows, came 28"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), TENSORS)
def test_tensors_that_are_not_those_of_the_model(folder: Path, change: Any, words: list[str]) -> None:
    """Fault 039: nothing is left at random and nothing is left out."""
    tamper(folder, change)
    with pytest.raises(SpecError) as caught:
        import_model(folder)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_tied_matrix_may_be_there_twice_if_it_is_the_same(tmp_path: Path) -> None:
    """Fault 113."""
    tied = build(llama(tie_head=True))
    export_model(tied, tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / WEIGHTS)
    same = {"lm_head.weight": tied.embed.weight.detach().clone()}
    tamper(tmp_path / "tied", lambda weights: weights.update(same))
    assert torch.equal(import_model(tmp_path / "tied").model.embed.weight, tied.embed.weight)
    tamper(tmp_path / "tied", lambda weights: weights.update({"lm_head.weight": torch.ones(29, 24)}))
    with pytest.raises(SpecError, match=r"lm_head\.weight: must equal model\.embed_tokens\.weight"):
        import_model(tmp_path / "tied")


def test_types_are_kept_and_a_mixture_is_widened(folder: Path) -> None:
    tamper(folder, lambda weights: weights.update({name: w.half() for name, w in weights.items()}))
    assert {parameter.dtype for parameter in import_model(folder).model.parameters()} == {torch.float16}
    tamper(folder, lambda weights: weights.update({"model.norm.weight": weights["model.norm.weight"].float()}))
    imported = import_model(folder)
    assert {parameter.dtype for parameter in imported.model.parameters()} == {torch.float32}
    assert any("which loses nothing" in note for note in imported.notes)
    tamper(folder, lambda weights: weights.update({name: w.double() for name, w in weights.items()}))
    with pytest.raises(SpecError, match=r"must be fp32, bf16 or fp16, came torch\.float64"):
        import_model(folder)
    tamper(folder, lambda weights: weights.update({name: w.to(torch.int8) for name, w in weights.items()}))
    with pytest.raises(SpecError, match=r"must be fp32, bf16 or fp16; .* makes .*final_norm\.gain"):
        import_model(folder)


class _Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_a_pickle_is_never_opened(folder: Path, name: str, tmp_path: Path) -> None:
    """Fault 042."""
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(_Bomb(tmp_path / "mark")))
    with pytest.raises(SpecError, match=f"holds weights as {name} alone, a pickle.*save it again with save_pretrained"):
        import_model(folder)
    (folder / WEIGHTS).write_bytes(pickle.dumps(_Bomb(tmp_path / "mark")))
    with pytest.raises(SpecError, match="not a safetensors file"):
        import_model(folder)
    (folder / "tokenizer.json").write_bytes(pickle.dumps(_Bomb(tmp_path / "mark")))
    assert not (tmp_path / "mark").exists()


def test_a_truncated_file_is_refused(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SpecError, match="is truncated"):
        import_model(folder)


# ------------------------------------------------------------------------------------------------------ several files


def test_several_files_with_an_index(tmp_path: Path) -> None:
    model = build(llama())
    export_model(model, tmp_path / "parts", shard_bytes=4000)
    files = sorted(path.name for path in (tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 2
    index = json.loads((tmp_path / "parts" / f"{WEIGHTS}.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    again = import_model(tmp_path / "parts").model.state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda named, files: named.update({"model.norm.weight": files[0]}), "is not in"),
        (lambda named, files: named.pop("model.norm.weight"), "model.norm.weight is not in the index"),
        (lambda named, files: named.update({"model.norm.weight": "../model.safetensors"}), "no file of this folder"),
        (lambda named, files: named.update({"model.norm.weight": "model-9.safetensors"}), "download may be incomplete"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    export_model(build(llama()), tmp_path / "parts", shard_bytes=4000)
    file = tmp_path / "parts" / f"{WEIGHTS}.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"], sorted(set(index["weight_map"].values())))
    file.write_text(json.dumps(index))
    with pytest.raises(SpecError, match=words):
        import_model(tmp_path / "parts")


# ------------------------------------------------------------------------------------------------------ export


@pytest.mark.parametrize(
    ("changes", "family", "words"),
    [
        ({"norm": "layer"}, "llama", ["every block: norm.kind: llama can only say 'rms', came 'layer'"]),
        ({"attention.softcap": 5.0}, "llama", ["every block: attention.softcap: llama can only say None, came 5.0"]),
        ({"attention.priors": ["penalty"]}, "llama", ["attention.priors"]),
        ({"position": ["rope", "alibi"]}, "llama", ["position"]),
        ({"blocks": [{"at": "1", "norm": "layer"}]}, "llama", ["block 1: norm.kind"]),
        ({"scale_embedding": True}, "llama", ["scale_embedding: llama can only say False, came True"]),
        ({"head.softcap": 3.0}, "llama", ["head.softcap"]),
        ({"form": "encoder"}, "llama", ["form"]),
        ({"attention.bias": "qkv"}, "gpt2", ["gpt2"]),
        ({"attention.window": 4}, "llama", ["attention.window"]),
    ],
)
def test_an_architecture_that_a_family_cannot_say(
    tmp_path: Path, changes: dict[str, Any], family: str, words: list[str]
) -> None:
    model = build(llama(**changes))
    with pytest.raises(SpecError) as caught:
        export_model(model, tmp_path / "out", family=family)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not (tmp_path / "out").exists()


ONE_WINDOW = [{"at": "1", "attention": {"window": 4}}]


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({}, "llama"),
        ({"attention.window": 4}, "mistral"),
        ({"attention.bias": "qkv"}, "qwen2"),
        ({"attention.bias": "qkv", "blocks": ONE_WINDOW}, "qwen2"),
        ({"attention.qk_norm": {"kind": "rms", "eps": 1e-5, "cast": "before_gain"}}, "qwen3"),
        ({"dropout": 0.1, "init": "xavier_uniform"}, "llama"),
    ],
)
def test_the_first_family_that_can_say_an_architecture(tmp_path: Path, changes: dict[str, Any], family: str) -> None:
    model = build(llama(**changes)).eval()
    assert export_model(model, tmp_path / "out") == family
    tokens = some_tokens(model.architecture, 2, 11)
    with torch.no_grad():
        assert torch.equal(import_model(tmp_path / "out").model(tokens), model(tokens))


def test_where_a_norm_rounds_is_that_of_the_family(tmp_path: Path) -> None:
    """Which in fp32 is a last bit."""
    model = build(llama(**{"norm.cast": "after_gain"})).eval()
    export_model(model, tmp_path / "out", family="llama")
    imported = import_model(tmp_path / "out").model
    assert imported.architecture.norm.cast == "before_gain"
    tokens = some_tokens(model.architecture, 2, 11)
    with torch.no_grad():
        torch.testing.assert_close(imported(tokens), model(tokens), **FP32)


def test_no_family_at_all_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"no family can say this architecture; the nearest one:\nevery block: attention\.softcap"
    ):
        export_model(build(llama(**{"attention.softcap": 5.0})), tmp_path / "out")


@pytest.mark.parametrize("kind", sorted(Attention.kinds.keys() - {"multi_head"}))
@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_says_another_attention(family: str, kind: str, tmp_path: Path) -> None:
    form = {"t5": "encoder_decoder", "bart": "encoder_decoder", "marian": "encoder_decoder"}.get(family, "decoder")
    table = {"form": form, "width": 16, "depth": 1, "position": "none", "attention": {"kind": kind, "heads": 2}}
    across = {"cross": {"kind": "multi_head", "heads": 2}} if form == "encoder_decoder" else {}
    model = build(Architecture.parse({**table, **across}))
    with pytest.raises(
        SpecError, match=f"{family} can(not say this architecture| only say 'multi_head', came '{kind}')"
    ):
        export_model(model, tmp_path / "out", family=family)
    assert not (tmp_path / "out").exists()
