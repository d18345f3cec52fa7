"""Folders of safetensors, in one file or in several with an index. A pickle is never opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from isoflop.files import read_json, write_json
from isoflop.spec import SpecError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SHARD_BYTES = 5 * 10**9


class Weights(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_weights(folder: Path) -> Weights:
    """What the safetensors of a folder hold.

    Raises:
        SpecError: there are none, a file is missing or damaged, or the index and the files disagree.
    """
    if (folder / INDEX).exists():
        return _indexed(folder)
    if (folder / SINGLE).exists():
        return Weights(dict.fromkeys(_names(folder / SINGLE), folder / SINGLE))
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise SpecError(
            f"{folder} holds weights as {pickles[0]} alone, a pickle, which can run code when it is opened. "
            "Where you trust it, let transformers load the folder and save it again with save_pretrained, "
            "which writes safetensors"
        )
    raise SpecError(f"{folder} holds no {SINGLE} and no {INDEX}")


def write_weights(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors as safetensors: in one file, or beyond `shard_bytes` in several with an index."""
    shards = _shards(tensors, shard_bytes)
    if len(shards) == 1:
        safetensors.torch.save_file(dict(tensors), folder / SINGLE, metadata={"format": "pt"})
        return
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in shard}, folder / file, metadata={"format": "pt"})
        names |= dict.fromkeys(shard, file)
    write_json(folder / INDEX, {"metadata": {"total_size": sum(map(_bytes, tensors.values()))}, "weight_map": names})


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + _bytes(tensor) > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += _bytes(tensor)
    return shards


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _indexed(folder: Path) -> Weights:
    index = read_json(folder / INDEX)
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise SpecError(f"{folder / INDEX} must hold a weight_map from tensors to files")
    outside = sorted(file for file in set(named.values()) if Path(file).name != file)
    if outside:
        raise SpecError(f"{folder / INDEX} names {outside[0]}, which is no file of this folder")
    held = {file: _names(folder / file) for file in sorted(set(named.values()))}
    lacking = sorted(name for name, file in named.items() if name not in held[file])
    extra = sorted(name for file, names in held.items() for name in names if named.get(name) != file)
    if lacking or extra:
        where = [f"{name} is not in {named[name]}" for name in lacking]
        raise SpecError(f"{folder / INDEX}: {'; '.join([*where, *(f'{name} is not in the index' for name in extra)])}")
    return Weights({name: folder / file for name, file in named.items()})


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except FileNotFoundError:
        raise SpecError(f"no such file: {file}; the download may be incomplete") from None
    except SafetensorError as error:
        raise SpecError(f"{file} is not a safetensors file, or is truncated: {error}") from None
