"""`import` and `export`: a saved model becomes a run, and a run a folder that its own library loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import isoflop as package
from isoflop.data import load_tokenizer
from isoflop.train import load_model
from study_folders import Command
from tiny_runs import strict_json

sys.path.append(str(Path(__file__).parents[1] / "parity"))
from transplant import randomise

TEXT = "import os\nfor path in os.listdir('.'):\n    print(path, 'naïve')\n" * 4


def tokenizer() -> Any:
    """Byte-level BPE with a begin and an end of text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Any, Any]:
    """A Llama and its tokenizer, saved in the folder `public`."""
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, intermediate_size=48, bos_token_id=0, eos_token_id=1, pad_token_id=None)
    peer, codec = randomise(LlamaForCausalLM(config)), tokenizer()
    peer.save_pretrained(tmp_path / "public")
    codec.save_pretrained(tmp_path / "public")
    return peer, codec


def test_a_public_model_is_planned_continued_and_given_back(
    isoflop: Command, llama: tuple[Any, Any], tmp_path: Path
) -> None:
    peer, codec = llama
    ended = isoflop("import", "hf:public", "--out", "run")
    count = sum(parameter.numel() for parameter in peer.parameters())
    assert ended.code == 0
    assert f"llama: {count:,} parameters in float32" in ended.out
    assert 'kind = "rms"' in ended.out
    assert ended.out.endswith("run: run\n")
    record = strict_json((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "imported"
    assert record["source"]["family"] == "llama"
    plan = strict_json(isoflop("plan", "run", "--json").out)
    assert plan["parameters"] == count
    prompt = "for path in"
    ids = codec(prompt, return_tensors="pt").input_ids
    assert ids[0, 0] == 0
    expected = peer.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    answer = strict_json(isoflop("generate", "run", "--prompt", prompt, "-n", 20, "--temperature", 0, "--json").out)
    assert answer["tokens"] == [token for token in expected if token != 1]
    assert answer["text"] == codec.decode(answer["tokens"])
    ended = isoflop("export", "run", "--to", "hf:back")
    assert (ended.code, ended.out) == (0, f"{count:,} parameters, float32, as llama: back\n")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert torch.equal(again(ids).logits, peer(ids).logits)
    assert (again.config.bos_token_id, again.config.eos_token_id) == (0, 1)
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "back")(prompt).input_ids == ids[0].tolist()


def test_a_run_of_ours_is_exported_in_the_first_family_that_can_say_it(isoflop: Command, tmp_path: Path) -> None:
    ended = isoflop("train", "modern", "vocab=256", "width=32", "depth=2", "attention.heads=2",
                    "training.steps=2", "training.rate=1e-3", "training.length=16", "training.batch=2", "training.data.source=text")  # fmt: skip
    assert ended.code == 0
    ended = isoflop("export", "runs/run", "--to", "hf:out", "--json")
    assert ended.code == 0
    written = strict_json(ended.out)
    assert (written["family"], written["dtype"], written["tokenizer"]) == ("llama", "float32", False)
    model, _, _ = load_model(tmp_path / "runs" / "run")
    tokens = torch.randint(256, (2, 20))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=1e-5, rtol=1e-5)
    assert theirs.config.eos_token_id == 0


def test_without_a_tokenizer_text_is_ids(isoflop: Command, llama: tuple[Any, Any], tmp_path: Path) -> None:
    (tmp_path / "public" / "tokenizer.json").unlink()
    ended = isoflop("import", "hf:public", "--out", "run", "--json")
    assert ended.code == 0
    assert strict_json(ended.out)["status"] == "imported"
    assert "text is token ids" in ended.err
    answer = strict_json(isoflop("generate", "run", "--prompt", "5 7", "-n", 3, "--temperature", 0, "--json").out)
    assert answer["text"] == "".join(f"{token} " for token in answer["tokens"])
    ended = isoflop("generate", "run", "--prompt", "five")
    assert ended.code == 1
    assert "text is token ids here" in ended.err
    assert load_tokenizer(tmp_path / "run" / "tokenizer.json").end_id == 1


def test_weights_in_bf16_stay_so(isoflop: Command, llama: tuple[Any, Any], tmp_path: Path) -> None:
    llama[0].bfloat16().save_pretrained(tmp_path / "public")
    assert isoflop("import", "hf:public", "--out", "run").code == 0
    model, _, _ = load_model(tmp_path / "run")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert isoflop("export", "run", "--to", "hf:back").code == 0
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_run_folder_declares_an_architecture(isoflop: Command, llama: tuple[Any, Any], tmp_path: Path) -> None:
    assert isoflop("import", "hf:public", "--out", "run").code == 0
    (tmp_path / "wide.toml").write_text('extends = "run"\nattention.window = 8\n')
    assert package.load(tmp_path / "wide.toml").attention.window == 8
    assert package.load(tmp_path / "run", **{"attention.window": 8}) == package.load(tmp_path / "wide.toml")
    ended = isoflop("train", "run", "--out", "run", "training.data.source=text")
    assert ended.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("import", "public", "--out", "run"), ["must be hf:PATH", "gguf:PATH", "came 'public'"]),
        (("import", "hf:nowhere", "--out", "run"), ["nowhere must be a folder", "not downloaded"]),
        (("import", "hf:text", "--out", "run"), ["no such file", "config.json"]),
        (("import", "hf:public", "--out", "text"), ["text must be empty or hold a run"]),
        (("import", "gguf:public/config.json", "--out", "run"), ["is no GGUF file"]),
        (("import", "gguf:public/none.gguf", "--out", "run"), ["no such file"]),
        (("export", "nowhere", "--to", "hf:out"), ["no such file"]),
    ],
)
def test_what_cannot_be_read_is_refused(
    isoflop: Command, llama: tuple[Any, Any], tmp_path: Path, arguments: tuple[str, ...], words: list[str]
) -> None:
    ended = isoflop(*arguments)
    assert ended.code in (1, 2)
    assert ended.out == ""
    assert all(word in ended.err for word in words), ended.err
    assert not (tmp_path / "run").exists()


def test_an_export_never_writes_over_anything(isoflop: Command, llama: tuple[Any, Any], tmp_path: Path) -> None:
    assert isoflop("import", "hf:public", "--out", "run").code == 0
    ended = isoflop("export", "run", "--to", "hf:public")
    assert ended.code == 2
    assert "public must be empty" in ended.err
    ended = isoflop("export", "run", "--to", "hf:out", "--family", "gpt2")
    assert ended.code == 2
    assert "every block: norm.kind: gpt2 can only say 'layer', came 'rms'" in ended.err
    ended = isoflop("export", "run", "--to", "hf:out", "--family", "lama")
    assert "Did you mean 'llama'?" in ended.err
    assert not (tmp_path / "out").exists()
    assert isoflop("import", "hf:public", "--out", "run").code == 2, "the run is there"
