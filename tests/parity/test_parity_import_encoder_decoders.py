"""T5, BART and Marian as transformers saves them: read, compared, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved import VOCAB, built, save
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transplant import random_tokens

from isoflop.interop import Imported, export_model, import_model
from isoflop.interop.family import say
from isoflop.model.memory import Source
from isoflop.spec import SpecError

SOURCE, TARGET, PAD, END, START = 17, 11, 1, 2, 3
IDS = {"vocab_size": VOCAB, "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": START}
T5_SIZES = {**IDS, "d_model": 48, "d_kv": 10, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
T5_SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
SIDES = {"encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 80, "decoder_ffn_dim": 72}
SIDES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 6, "d_model": 48, "max_position_embeddings": 40}
NOT_FORCED = {"forced_eos_token_id": None, "forced_bos_token_id": None}
PEERS: dict[str, tuple[Any, Any]] = {
    "t5": (T5ForConditionalGeneration, T5Config(**T5_SIZES)),
    "t5-v1.1": (
        T5ForConditionalGeneration,
        T5Config(**T5_SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "t5-silu": (T5ForConditionalGeneration, T5Config(**T5_SIZES, feed_forward_proj="gated-silu")),
    "bart": (BartForConditionalGeneration, BartConfig(**IDS, **SIDES, **NOT_FORCED, scale_embedding=True)),
    "bart-relu": (
        BartForConditionalGeneration,
        BartConfig(**IDS, **SIDES, **NOT_FORCED, activation_function="relu"),
    ),
    "marian": (
        MarianMTModel,
        MarianConfig(**IDS, **SIDES, **NOT_FORCED, scale_embedding=True, activation_function="swish"),
    ),
}


def peer_of(name: str) -> Any:
    peer = built(*PEERS[name])
    if hasattr(peer, "final_logits_bias"):
        peer.final_logits_bias.copy_(torch.linspace(-1, 1, VOCAB)[None])
    if name.startswith("bart"):
        for side in (peer.model.encoder, peer.model.decoder):  # rows for no position: ours has none, and writes zeros
            side.embed_positions.weight.data[:2] = 0
    if name == "marian":  # sines, which are no weights
        for side in (peer.model.encoder, peer.model.decoder):
            side.embed_positions.weight.data.copy_(side.embed_positions.create_weight())
    return peer


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Sources of several lengths, filled up on the right, their mask, and targets."""
    real = torch.arange(SOURCE) < torch.tensor([[SOURCE], [9], [2]])
    source = random_tokens(3, SOURCE, vocab=VOCAB - 4) + 4
    return torch.where(real, source, PAD), real, random_tokens(3, TARGET, vocab=VOCAB - 4, seed=2) + 4


@torch.no_grad()
def their_logits(peer: Any) -> Tensor:
    source, real, target = batch()
    return peer(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits


@torch.no_grad()
def our_logits(imported: Imported) -> Tensor:
    source, real, target = batch()
    return imported.model(target, source=Source(source, documents_BS=torch.where(real, 0, -1)))


def check_text(peer: Any, imported: Imported) -> None:
    """The same greedy text from each source, begun with the id that the config carries.

    Theirs without a cache: T5's has as many layers as the encoder, here too few for the decoder.
    """
    start = imported.carried["decoder_start_token_id"]
    sources = [(random_tokens(size, vocab=VOCAB - 4, seed=size) + 4).tolist() for size in (2, 9, SOURCE)]
    theirs = [
        peer.generate(
            torch.tensor([source]),
            max_new_tokens=12,
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            use_cache=False,
        )[0, 1:].tolist()
        for source in sources
    ]
    assert imported.model.generate([[start]] * 3, 12, sources=sources) == theirs


@pytest.mark.parametrize("name", PEERS)
def test_an_encoder_decoder(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    imported = import_model(save(peer, tmp_path / "saved"))
    theirs = their_logits(peer)
    assert theirs.std() > 0.1
    torch.testing.assert_close(our_logits(imported), theirs, rtol=1e-5, atol=1e-5)
    check_text(peer, imported)
    check_export(imported, peer, tmp_path)
    check_bf16(peer, tmp_path / "rounded")


def check_export(imported: Imported, peer: Any, folder: Path) -> None:
    exported = folder / "exported"
    assert export_model(imported.model, exported, carried=imported.carried) == imported.family
    before, after = (load_file(path / "model.safetensors") for path in (folder / "saved", exported))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    again = import_model(exported)
    assert not say(again.architecture).differences(say(imported.architecture))
    assert again.carried == imported.carried
    assert torch.equal(our_logits(again), our_logits(imported))
    loaded, report = type(peer).from_pretrained(exported, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert all("embed_positions" in name for name in report["missing_keys"])
    assert torch.equal(their_logits(loaded.eval()), their_logits(peer))


def check_bf16(peer: Any, folder: Path) -> None:
    """Loaded in bf16 and kept in it, about as near to fp32 as the peer is."""
    imported = import_model(save(peer.bfloat16(), folder))
    assert {parameter.dtype for parameter in imported.model.parameters()} == {torch.bfloat16}
    rounded = type(peer).from_pretrained(folder, dtype=torch.bfloat16).eval()
    theirs = their_logits(rounded).float()
    truth = our_logits(import_model(_widened(folder)))
    ours = our_logits(imported)
    assert ours.dtype == torch.bfloat16
    assert _rms(ours.float() - truth) <= 2 * _rms(theirs - truth)


def _widened(folder: Path) -> Path:
    """The rounded weights in fp32, which the peer's own fp32 logits were compared with above."""
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    wide = folder.with_name("widened")
    wide.mkdir()
    save_file(tensors, wide / "model.safetensors", metadata={"format": "pt"})
    (wide / "config.json").write_bytes((folder / "config.json").read_bytes())
    return wide


def _rms(value: Tensor) -> float:
    return float(value.square().mean().sqrt())


def test_a_matrix_of_the_heads_own(tmp_path: Path) -> None:
    """T5 v1.1 as it was published: untied, and not scaled."""
    peer = peer_of("t5-v1.1")
    folder = save(peer, tmp_path, tie_word_embeddings=False, scale_decoder_outputs=...)
    tensors = load_file(folder / "model.safetensors")
    own = torch.randn(VOCAB, 48, generator=torch.Generator().manual_seed(7)) / 48**0.5
    save_file({**tensors, "lm_head.weight": own}, folder / "model.safetensors", metadata={"format": "pt"})
    imported = import_model(folder)
    assert (imported.architecture.tie_head, imported.architecture.head.scale) == (False, None)
    peer.lm_head.weight = torch.nn.Parameter(own)
    torch.testing.assert_close(our_logits(imported), their_logits(peer), rtol=1e-5, atol=1e-5)


def test_copies_of_a_shared_table_must_be_equal(tmp_path: Path) -> None:
    folder = save(peer_of("bart"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    table, name = tensors["model.shared.weight"], "model.encoder.embed_tokens.weight"
    save_file({**tensors, name: table.clone()}, folder / "model.safetensors", metadata={"format": "pt"})
    import_model(folder)
    save_file({**tensors, name: table + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SpecError, match=rf"{name}: must equal model.shared.weight"):
        import_model(folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("t5", {"feed_forward_proj": "gated-maxout"}, "feed_forward_proj: must be one of"),
        ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder: must be True"),
        ("bart", {"normalize_before": True}, "normalize_before: must be False"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding: must be True"),
        ("marian", {"decoder_vocab_size": 50}, "decoder_vocab_size: must be 97, came 50"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings: must be True"),
    ],
)
def test_what_cannot_be_said_is_refused(name: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = save(peer_of(name), tmp_path, **change)
    with pytest.raises(SpecError, match=words):
        import_model(folder)
