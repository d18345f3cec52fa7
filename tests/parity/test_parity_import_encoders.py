"""BERT, RoBERTa and its kin, ALBERT and ModernBERT as transformers saves them: read, compared, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from saved import VOCAB, built, check_bf16, check_export, save
from torch import Tensor
from transplant import random_tokens

from isoflop.interop import Imported, export_model, import_model
from isoflop.model import pool
from isoflop.spec import SpecError

LENGTH, PADDING = 21, -1
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODERN = {**SIZES, "num_hidden_layers": 5, "local_attention": 8, "cls_token_id": None, "sep_token_id": None}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SIZES),
    "bert-tanh": ("Bert", {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 0.03, "type_vocab_size": 3}),
    "roberta": ("Roberta", SIZES),
    "roberta-relu": ("Roberta", {**SIZES, "hidden_act": "relu", "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", SIZES),
    "camembert": ("Camembert", SIZES),
    "albert": ("Albert", {**SIZES, "embedding_size": 20}),
    "albert-groups": ("Albert", {**SIZES, "num_hidden_layers": 5, "num_hidden_groups": 2, "hidden_act": "relu"}),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-biases": (
        "ModernBert",
        {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    ),
    "modernbert-all-local": ("ModernBert", {**MODERN, "layer_types": ["sliding_attention"] * 5, "decoder_bias": False}),
    "modernbert-all-global": ("ModernBert", {**MODERN, "layer_types": ["full_attention"] * 5}),
}


def peer_of(name: str, task: str = "ForMaskedLM", **more: Any) -> Any:
    stem, changes = FAMILIES[name]
    peer = built(getattr(transformers, f"{stem}{task}"), getattr(transformers, f"{stem}Config")(**{**changes, **more}))
    if "Roberta" in stem or stem == "Camembert":
        # Rows for no position: ours has none of them, and writes zeros.
        features(peer).embeddings.position_embeddings.weight.data[:2] = 0
    return peer


def tokens_of(*shape: int) -> Tensor:
    """Ids above that of padding, which RoBERTa counts no position for."""
    return random_tokens(*shape, vocab=VOCAB - 2) + 2


def features(peer: Any) -> Any:
    return getattr(peer, peer.base_model_prefix, peer)


@torch.no_grad()
def check_logits(peer: Any, imported: Imported) -> None:
    tokens = tokens_of(3, LENGTH)
    theirs = peer(tokens).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(imported.model(tokens), theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def check_padding(peer: Any, imported: Imported, side: str) -> None:
    """Rows of several lengths, filled up on either side: their mask, and documents and positions of ours."""
    sizes, tokens = (LENGTH, 13, 2), tokens_of(3, LENGTH)
    place = torch.arange(LENGTH)[None]
    before = torch.tensor([[LENGTH - size if side == "left" else 0] for size in sizes])
    real = (place >= before) & (place < before + torch.tensor(sizes)[:, None])
    tokens = torch.where(real, tokens, 1)
    positions = torch.where(real, place - before, 0)
    counted = {"Roberta": 2, "XLMRoberta": 2, "Camembert": 2}  # their position ids start behind that of padding
    offset = next((shift for stem, shift in counted.items() if type(peer).__name__.startswith(stem)), 0)
    theirs = peer(tokens, attention_mask=real.long(), position_ids=positions + offset).logits
    ours = imported.model(tokens, positions, torch.where(real, 0, PADDING))
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def check_types(peer: Any, imported: Imported) -> None:
    count = imported.architecture.types
    if count is None:
        return
    tokens, types = tokens_of(2, LENGTH), random_tokens(2, LENGTH, vocab=count, seed=5)
    theirs = peer(tokens, token_type_ids=types).logits
    torch.testing.assert_close(imported.model(tokens, types=types), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_masked_language_model(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    imported = import_model(save(peer, tmp_path / "saved"))
    check_logits(peer, imported)
    check_padding(peer, imported, "right")
    check_padding(peer, imported, "left")
    check_types(peer, imported)
    check_export(peer, tmp_path / "saved", tmp_path / "exported", unread={})
    check_bf16(peer, tmp_path / "rounded", tokens_of(8, LENGTH))


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_matrix_of_the_heads_own(name: str, tmp_path: Path) -> None:
    """Then its bias is the one beside it, and the other, which their model holds too, is never read."""
    peer = peer_of(name, tie_word_embeddings=False)
    imported = import_model(save(peer, tmp_path / "saved"))
    check_logits(peer, imported)
    export_model(imported.model, tmp_path / "exported", family=imported.family, carried=imported.carried)
    again = type(peer).from_pretrained(tmp_path / "exported").eval()
    tokens = tokens_of(2, LENGTH)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, peer(tokens).logits)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_a_model_without_a_head(name: str, tmp_path: Path) -> None:
    """Files of the bare model, whose tensors lack a prefix and which have a pooler: its features are those of the peer."""
    peer = peer_of(name, "Model")
    imported = import_model(save(peer, tmp_path / "saved"))
    assert imported.architecture.head.kind == "linear"
    tokens = tokens_of(2, LENGTH)
    with torch.no_grad():
        theirs = peer(tokens).last_hidden_state
        torch.testing.assert_close(imported.model.features(tokens), theirs, rtol=1e-5, atol=1e-5)
        export_model(imported.model, tmp_path / "exported", family=imported.family, carried=imported.carried)
        again = type(peer).from_pretrained(tmp_path / "exported").eval()
        assert torch.equal(again(tokens).last_hidden_state, theirs)
        rows = torch.where(torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]]), 0, PADDING)
        mask = (rows == 0).long()
        hidden = peer(tokens, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        ours = pool(imported.model.features(tokens, documents=rows), rows)
        torch.testing.assert_close(ours, torch.nn.functional.normalize(mean), rtol=1e-5, atol=1e-5)


def test_sharing_and_windows_are_declared(tmp_path: Path) -> None:
    albert = import_model(save(peer_of("albert-groups"), tmp_path / "albert")).architecture
    assert (albert.share.count, albert.share.owners(5), albert.embed.width) == (2, (0, 0, 0, 3, 3), 128)
    modern = import_model(save(peer_of("modernbert"), tmp_path / "modern")).architecture
    assert [block.attention.window for block in modern.declarations] == [None, 5, 5, None, 5]
    assert [block.position[0].base for block in modern.declarations] == [
        160_000.0,
        10_000.0,
        10_000.0,
        160_000.0,
        10_000.0,
    ]
    assert [getattr(block.attention_norm, "kind", None) for block in modern.declarations] == [
        "none",
        None,
        None,
        None,
        None,
    ]
    roberta = import_model(save(peer_of("roberta"), tmp_path / "roberta")).architecture
    assert roberta.limit == 38


def test_the_words_of_older_modernbert(tmp_path: Path) -> None:
    """One period of global blocks and two bases, as the published config has it."""
    peer = peer_of("modernbert")
    old = {
        "rope_parameters": ...,
        "layer_types": ...,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "repad_logits_with_grad": False,
        "position_embedding_type": "absolute",
    }
    check_logits(peer, import_model(save(peer, tmp_path, **old)))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: must be 'absolute'"),
        ("bert", {"is_decoder": True}, "is_decoder: must be False"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention: must be False"),
        ("bert", {"hidden_act": "gelu_10"}, "hidden_act: must be one of gelu"),
        ("bert", {"a_new_option": 3}, "a_new_option: is no key that this family can say"),
        ("bert", {"architectures": ["BertForTokenClassification"]}, "architectures: must be BertForMaskedLM"),
        ("albert", {"architectures": ["AlbertModel"]}, "architectures: must be .*: a bare model has no map"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id: must be 1"),
        ("albert", {"inner_group_num": 2}, "inner_group_num: must be 1"),
        ("albert", {"num_hidden_groups": 4}, "num_hidden_groups: must be 1 to num_hidden_layers 3"),
        ("modernbert", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: must be absent"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types: must say"),
    ],
)
def test_what_cannot_be_said_is_refused(name: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = save(peer_of(name), tmp_path, **change)
    with pytest.raises(SpecError, match=words):
        import_model(folder)


def test_groups_that_their_rounding_shifts_are_refused(tmp_path: Path) -> None:
    """int(i / (depth / groups)) in fp64 is not always floor(i groups / depth)."""
    found = [
        (depth, groups)
        for depth in range(1, 60)
        for groups in range(1, depth + 1)
        if [int(i / (depth / groups)) for i in range(depth)] != [i * groups // depth for i in range(depth)]
    ]
    depth, groups = found[0]
    folder = save(peer_of("albert"), tmp_path, num_hidden_layers=depth, num_hidden_groups=groups)
    with pytest.raises(
        SpecError, match=rf"num_hidden_groups: {groups} groups of {depth} blocks are .* by their rounding"
    ):
        import_model(folder)


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("bert", {"types": None}, "types: bert can only say"),
        ("bert", {"form": "decoder"}, "form: bert can only say 'encoder'"),
        ("bert", {"embed_norm": None}, "embed_norm"),
        ("bert", {"head": {"softcap": 3.0}}, "head.softcap"),
        ("albert", {}, "share|embed"),
        ("modernbert", {}, "modernbert can"),
    ],
)
def test_what_a_family_cannot_write_is_refused(family: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    from isoflop.model import build

    architecture = import_model(save(peer_of("bert"), tmp_path / "saved")).architecture.override(change)
    with pytest.raises(SpecError, match=words):
        export_model(build(architecture), tmp_path / "out", family=family)
    assert not (tmp_path / "out").exists()
