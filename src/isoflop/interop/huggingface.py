"""Models from and to a folder of Hugging Face's: config.json, safetensors, tokenizer.json. No code in a folder is ever run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoflop.data import NO_END, Codec, IdCodec, LibraryCodec
from isoflop.files import read_json, write_json
from isoflop.interop.config import Config
from isoflop.interop.families import FAMILIES
from isoflop.interop.family import Family, choose
from isoflop.interop.keymap import to_ours, to_theirs
from isoflop.interop.weights import SHARD_BYTES, read_weights, write_weights
from isoflop.model import Architecture, Transformer
from isoflop.spec import SpecError, did_you_mean

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Imported:
    """A model that was trained elsewhere.

    Attributes:
        model: in eval mode, in the type that its weights have in the file.
        codec: its tokenizer; where there is none, text is ids.
        family: the `model_type`.
        carried: keys of config.json that an export writes back.
        notes: what a person should know.
    """

    model: Transformer
    codec: Codec
    family: str
    carried: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> Architecture:
        return self.model.architecture


def import_model(path: str | Path) -> Imported:
    """The model in a folder.

    Raises:
        SpecError: a key of config.json cannot be said, or the tensors are not those of such a model; says which.
    """
    folder = Path(path)
    table = _read_config(folder)
    family = family_of(table)
    config = Config(table)
    try:
        architecture = family.architecture(config)
    except SpecError as error:
        raise SpecError(f"{folder / CONFIG}, read as {family.name}:\n{error}") from None
    weights, notes = _floats(named_for(family, read_weights(folder), architecture))
    model = assemble(family, architecture, weights)
    codec, more = _codec(folder, architecture.vocab, config.carried.get("eos_token_id"))
    return Imported(model, codec, family.name, config.carried, (*notes, *more))


def export_model(
    model: Transformer,
    path: str | Path,
    *,
    family: str | None = None,
    codec: Codec | None = None,
    carried: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> str:
    """Write a model as a folder that transformers loads; returns the family it is said in.

    Args:
        family: its `model_type`; None for the first that can say the architecture.
        codec: its tokenizer, written where it is a tokenizer.json.
        carried: keys for config.json that say nothing of the architecture.
        shard_bytes: how large a file may be.

    Raises:
        SpecError: the family cannot say the architecture, names every field; or the folder is not empty.
    """
    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"{folder} must be empty or not there")
    carried = dict(carried or {})
    found = choose(FAMILIES.values(), model.architecture, carried) if family is None else _named(family)
    table = found.config(model.architecture, carried)
    end = None if codec is None or codec.end_id == NO_END else codec.end_id
    ids = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": None}  # absent, a family's own would be meant
    tensors = to_theirs(found.keys(model.architecture), model)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_weights(folder, tensors, shard_bytes)
        if isinstance(codec, LibraryCodec):
            codec.save_library(folder / TOKENIZER)
        dtype = str(model.head_weight.dtype).removeprefix("torch.")
        write_json(folder / CONFIG, {**ids, **table, "torch_dtype": dtype})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return found.name


def family_of(table: Mapping[str, Any]) -> Family:
    """The family that a config names, with the class of a language model."""
    family = _named(str(table.get("model_type")))
    classes = table.get("architectures") or [family.model]
    bare = family.model.rpartition("For")[0] + "Model"
    if not {family.model, bare} & set(classes):
        raise SpecError.at("architectures", f"must be {family.model} for {family.name}, came {', '.join(classes)}")
    return family


def named_for(family: Family, weights: Mapping[str, Tensor], architecture: Architecture) -> Mapping[str, Tensor]:
    """The tensors under the names that a whole model has: files of a bare model lack the prefix."""
    wanted = {name for key in family.keys(architecture) for name in key.theirs if name.startswith(family.prefix)}
    bare = {name.removeprefix(family.prefix).partition(".")[0] for name in wanted}
    if not family.prefix or any(name.startswith(family.prefix) for name in weights):
        return weights
    return {f"{family.prefix}{name}" if name.partition(".")[0] in bare else name: weights[name] for name in weights}


def assemble(family: Family, architecture: Architecture, weights: Mapping[str, Tensor]) -> Transformer:
    """The model with these weights, in their type: nothing is drawn and nothing is cast."""
    with torch.device("meta"):
        model = Transformer(architecture)
    try:
        made = to_ours(family.keys(architecture), weights, model, family.unused)
    except SpecError as error:
        raise SpecError(f"the tensors are not those that config.json declares:\n{error}") from None
    counts = sorted(name for name, tensor in made.items() if not tensor.is_floating_point())
    if counts:
        raise SpecError(f"weights must be fp32, bf16 or fp16; of another type are what makes {', '.join(counts)}")
    first = {parameter: name for name, parameter in model.named_parameters()}  # of those that stand in several places
    state = {name: made[first[parameter]] for name, parameter in model.named_parameters(remove_duplicate=False)}
    model.load_state_dict(state, strict=True, assign=True)
    return model.requires_grad_().eval()


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise SpecError(f"{folder} must be a folder with {CONFIG} and safetensors; models are not downloaded here")
    table = read_json(folder / CONFIG)
    if not isinstance(table, dict) or "model_type" not in table:
        raise SpecError(f"{folder / CONFIG} must name a model_type; there are {', '.join(FAMILIES)}")
    return table


def _named(family: str) -> Family:
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise SpecError(f"{family!r} is no family that can be read or written; there are {', '.join(FAMILIES)}.{hint}")
    return FAMILIES[family]


def _floats(weights: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], tuple[str, ...]]:
    """The tensors in one type: that of the file, or the widest where it has several, which loses nothing."""
    tensors = dict(weights)
    types = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    unknown = sorted(str(dtype) for dtype in types - set(FLOATS))
    if unknown:
        raise SpecError(f"weights must be fp32, bf16 or fp16, came {', '.join(unknown)}")
    if len(types) < 2:
        return tensors, ()
    widest = torch.float32
    note = f"the file holds {' and '.join(sorted(map(str, types)))}: all weights are {widest} here, which loses nothing"
    return {name: t.to(widest) if t.is_floating_point() else t for name, t in tensors.items()}, (note,)


def _codec(folder: Path, vocab: int, end: Any) -> tuple[Codec, tuple[str, ...]]:
    ends = end if isinstance(end, list) else [end]
    if (folder / TOKENIZER).exists():
        several = (f"text ends at id {ends[0]}; {ends[1:]} end it too, by the config",) if len(ends) > 1 else ()
        return LibraryCodec.read(folder / TOKENIZER, vocab, ends[0]), several
    return IdCodec(vocab, ends[0]), (f"there is no {TOKENIZER}: text is token ids, such as '12 7 9'",)
