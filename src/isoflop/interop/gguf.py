"""GGUF files, as llama.cpp writes them: dequantised through the reader of transformers (extra `hf`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoflop.data import Codec, IdCodec, LibraryCodec
from isoflop.interop.config import Config
from isoflop.interop.huggingface import Imported, assemble, family_of
from isoflop.spec import SpecError


def import_gguf(path: str | Path) -> Imported:
    """The model in a GGUF file, its weights in fp32.

    Raises:
        SpecError: the file is none, transformers cannot read it, or its family cannot be read here.
    """
    file = Path(path)
    if not file.is_file():
        raise SpecError(f"no such file: {file}")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise SpecError(f"{file} is no GGUF file: it does not begin with GGUF")
    table, tensors, library = _read(file)
    family = family_of(table)
    config = Config(table)
    try:
        architecture = family.architecture(config)
    except SpecError as error:
        raise SpecError(f"{file}, read as {family.name}:\n{error}") from None
    model = assemble(family, architecture, tensors)
    end = config.carried.get("eos_token_id")
    codec: Codec = (
        IdCodec(architecture.vocab, end) if library is None else LibraryCodec(library, architecture.vocab, end)
    )
    return Imported(model, codec, family.name, config.carried, ("quantised weights are numbers of fp32 here",))


def _read(file: Path) -> tuple[Mapping[str, Any], Mapping[str, Tensor], Mapping[str, Any] | None]:
    """The config, the dequantised tensors and the tokenizer.json that transformers makes of a file."""
    try:
        import gguf  # noqa: F401  # transformers reads with it
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    except ImportError:
        raise SpecError("GGUF files are read by transformers and gguf: pip install 'isoflop[hf]'") from None
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(str(file.parent), **where)
        with torch.device("meta"):
            names = AutoModelForCausalLM.from_config(config)
        tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=names)["tensors"]
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
    except Exception as error:  # it raises what its many parts raise
        raise SpecError(f"transformers cannot read {file}: {error}") from error
    table = {**json.loads(config.to_json_string()), "architectures": [type(names).__name__]}
    return table, tensors, json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else None
