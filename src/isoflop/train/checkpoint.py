"""Checkpoints that are whole or absent: weights and optimizer state as safetensors, the rest as JSON.

    checkpoint/{model.safetensors, optimizer.safetensors, past.safetensors (of a model with a memory), state.json}

A checkpoint is written into `checkpoint.partial-*` beside its place, flushed to the disk, and moved there by rename. A folder
cannot be renamed over another, so the old one first steps aside as `checkpoint.old-*`: a kill in between leaves that one,
which `find` takes. Partial folders are never read. state.json is written last and holds the size and SHA-256 of the
other files. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError

from isoflop.files import read_json, write_json
from isoflop.spec import SpecError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isoflop.data import Codec
    from isoflop.model import Architecture, Transformer

FORMAT = "isoflop checkpoint 1"
NAME, MODEL, OPTIMIZER, STATE = "checkpoint", "model.safetensors", "optimizer.safetensors", "state.json"
PAST = "past.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or used; says which file and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk; its files were there with the right sizes when it was found."""

    path: Path
    state: dict[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """The weights by name, each stored tensor once: fp32 where they were trained here, else in the type they came in."""
        return self._tensors(MODEL)

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's state by `parameter::state`."""
        return self._tensors(OPTIMIZER)

    def past(self) -> dict[str, Tensor]:
        """What the last step left to the next, by name; nothing of a model without a memory."""
        return self._tensors(PAST) if PAST in self.state["files"] else {}

    def _tensors(self, name: str) -> dict[str, Tensor]:
        file = self.path / name
        if _digest(file) != self.state["files"][name]["sha256"]:
            raise CheckpointError(f"{file} is damaged: its SHA-256 is not the one that {STATE} recorded")
        try:
            return safetensors.torch.load_file(file)
        except SafetensorError as error:
            raise CheckpointError(f"{file} is not a safetensors file: {error}") from None


def save(
    folder: Path,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    past: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint into a run folder in place of the one there.

    Raises:
        CheckpointError: the disk is full or fails. The checkpoint before it is untouched.
    """
    _remove_leftovers(folder, "partial")
    try:
        partial = Path(tempfile.mkdtemp(dir=folder, prefix=f"{NAME}.partial-"))
        try:
            _write(partial, {MODEL: weights, OPTIMIZER: optimizer, **({PAST: past} if past else {})}, state)
            _swap(partial, folder / NAME)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        kept = "the last complete checkpoint is untouched" if (folder / NAME).exists() else "there is none yet"
        message = f"cannot write a checkpoint into {folder}: {error}; {kept}. Make room and start the run again"
        raise CheckpointError(message) from error


def find(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint of a run folder; None where no save was ever completed.

    Raises:
        CheckpointError: there is one, and it is truncated, or not of this program.
    """
    places = [folder / NAME, *sorted(folder.glob(f"{NAME}.old-*"))]
    problems = []
    for place in places:
        if place.exists():
            try:
                return _open(place)
            except CheckpointError as error:
                problems.append(error)
    if problems:
        raise problems[0]
    return None


def delete(folder: Path) -> None:
    """Remove every checkpoint of a run folder."""
    shutil.rmtree(folder / NAME, ignore_errors=True)
    _remove_leftovers(folder, "old")
    _remove_leftovers(folder, "partial")


def restore(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Copy tensors into those of the same names; names and shapes must match exactly, both ways.

    Raises:
        CheckpointError: lists every name that is missing, unknown, or of another shape.
    """
    import torch

    problems = [f"{name} is missing" for name in own if name not in tensors]
    problems += [f"{name} is unknown to the model" for name in tensors if name not in own]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, the model's has {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        raise CheckpointError(f"the weights in {source} do not fit the model: {'; '.join(problems)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once (a tied one under its first name) and every buffer that belongs to the model's state."""
    parameters = dict(model.named_parameters())
    tied = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {**parameters, **buffers}


def load_model(folder: str | Path) -> tuple[Transformer, Architecture, Codec]:
    """The model of a run folder with its last checkpoint's weights in eval mode, its architecture and its tokenizer.

    Raises:
        ValueError: the folder holds no run, no complete checkpoint, or a damaged file.
    """
    from isoflop.data import load_tokenizer
    from isoflop.model import Architecture, build

    folder = Path(folder)
    record = read_json(folder / "run.json")
    if not isinstance(record, dict) or "architecture" not in record:
        raise CheckpointError(f"{folder / 'run.json'} is no record of a run: it declares no architecture")
    found = find(folder)
    if found is None:
        raise CheckpointError(f"{folder} holds no complete checkpoint; train the run first")
    try:
        architecture = Architecture.parse(record["architecture"])
    except SpecError as error:
        raise SpecError(f"{folder}: {error}{_plugins_needed(record['architecture'])}") from None
    if found.state["architecture_digest"] != architecture.digest:
        raise CheckpointError(f"{found.path} holds weights of another architecture than {folder / 'run.json'} declares")
    weights = found.weights()
    model = build(architecture, dtype=next(iter(weights.values())).dtype)
    restore(named_tensors(model), weights, found.path / MODEL)
    return model.eval(), architecture, load_tokenizer(folder / "tokenizer.json")


def _plugins_needed(architecture: Any) -> str:
    """A run names no code to import, so the person must; here is what he had named when it was trained."""
    plugins = architecture.get("plugins") if isinstance(architecture, dict) else None
    return f"\nIt was trained with plugins: give {' '.join(f'--plugin {name}' for name in plugins)}" if plugins else ""


def _write(partial: Path, contents: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    files = {}
    for name, tensors in contents.items():
        file = partial / name
        safetensors.torch.save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, file)
        _flush(file)
        files[name] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
    write_json(partial / STATE, {"format": FORMAT, **state, "files": files})
    partial.chmod(0o755)  # mkdtemp makes folders that nobody else can read
    _flush(partial)


def _swap(partial: Path, place: Path) -> None:
    aside = place.with_name(f"{NAME}.old-{partial.name.rpartition('-')[2]}")
    if place.exists():
        os.rename(place, aside)
    os.rename(partial, place)
    _flush(place.parent)
    _remove_leftovers(place.parent, "old")


def _open(place: Path) -> Checkpoint:
    state = read_json(place / STATE)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{place / STATE} must say format {FORMAT!r}; this is no checkpoint of this program")
    for name, facts in state["files"].items():
        file = place / name
        size = file.stat().st_size if file.exists() else 0
        if size != facts["bytes"]:
            raise CheckpointError(f"{file} is truncated or missing: {size} bytes of {facts['bytes']}")
    return Checkpoint(place, state)


def _remove_leftovers(folder: Path, what: str) -> None:
    for leftover in folder.glob(f"{NAME}.{what}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
