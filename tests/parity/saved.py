"""Peers with random weights, saved as a public model is, and what must hold of a family that reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transplant import random_tokens, randomise

from isoflop.interop import Imported, export_model, import_model
from isoflop.interop.family import say

VOCAB = 97
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def save(peer: nn.Module, folder: Path, **changes: Any) -> Path:
    """The peer as its own library saves it, with keys of config.json changed (None removes one)."""
    peer.save_pretrained(folder)
    if changes:
        table = json.loads((folder / "config.json").read_text())
        table = {name: value for name, value in {**table, **changes}.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(table))
    return folder


def built(cls: type[Any], config: Any) -> Any:
    """A peer whose every weight matters."""
    return randomise(cls(config))


@torch.no_grad()
def logits(peer: Any, tokens_BT: Tensor) -> Tensor:
    return peer(tokens_BT).logits


def check_logits(peer: Any, imported: Imported, length: int = 29) -> None:
    """In fp32, the same logits and the same greedy text."""
    tokens_BT = random_tokens(3, length, vocab=VOCAB)
    theirs = logits(peer, tokens_BT)
    assert theirs.std() > 0.1
    with torch.no_grad():
        torch.testing.assert_close(imported.model(tokens_BT), theirs, rtol=1e-5, atol=1e-5)
    prompts = [random_tokens(size, vocab=VOCAB, seed=size).tolist() for size in (2, 9, 14)]
    text = [
        peer.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert imported.model.generate(prompts, 24) == text


def check_bf16(peer: Any, folder: Path, tokens_BT: Tensor | None = None) -> None:
    """Loaded in bf16 and kept in it, our logits are about as near to those of fp32 as the peer's own."""
    save(peer.bfloat16(), folder)
    imported = import_model(folder)
    assert {parameter.dtype for parameter in imported.model.parameters()} == {torch.bfloat16}
    tokens_BT = random_tokens(8, 29, vocab=VOCAB) if tokens_BT is None else tokens_BT
    rounded = type(peer).from_pretrained(folder, dtype=torch.bfloat16).eval()
    assert rounded.dtype == torch.bfloat16
    theirs = logits(rounded, tokens_BT).float()
    truth = logits(rounded.float(), tokens_BT)
    with torch.no_grad():
        ours = imported.model(tokens_BT)
    assert ours.dtype == torch.bfloat16
    assert _rms(ours.float() - truth) <= 2 * _rms(theirs - truth)


def check_export(peer: Any, folder: Path, exported: Path, unread: Mapping[str, int]) -> None:
    """What is exported holds the same tensors to the bit, loads in transformers, and is the same when it is read again."""
    imported = import_model(folder)
    assert export_model(imported.model, exported, family=imported.family, carried=imported.carried) == imported.family
    before, after = load_file(folder / "model.safetensors"), load_file(exported / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name][unread.get(name, 0) :], tensor[unread.get(name, 0) :]), name
    again = import_model(exported)
    assert not say(again.architecture).differences(say(imported.architecture))
    assert again.carried == imported.carried
    state = imported.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.model.state_dict().items())
    kernel = peer.config._attn_implementation
    loaded, report = type(peer).from_pretrained(exported, output_loading_info=True, attn_implementation=kernel)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens_BT = random_tokens(2, 29, vocab=VOCAB)
    assert torch.equal(logits(loaded.eval(), tokens_BT), logits(peer, tokens_BT))


def check_family(peer: Any, folder: Path, unread: Mapping[str, int] | None = None) -> Imported:
    """All of the above, of a peer in fp32. `unread`: tensors whose first rows no position reads."""
    imported = import_model(save(peer, folder / "saved"))
    assert {parameter.dtype for parameter in imported.model.parameters()} == {torch.float32}
    check_logits(peer, imported)
    check_export(peer, folder / "saved", folder / "exported", unread or {})
    check_bf16(peer, folder / "rounded")
    return imported


def _rms(value: Tensor) -> float:
    return float(value.square().mean().sqrt())
