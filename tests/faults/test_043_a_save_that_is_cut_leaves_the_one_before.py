"""Fault 043: a killed save, or a full disk, leaves a broken newest checkpoint."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from isoflop.train import CheckpointError
from isoflop.train import checkpoint as module
from isoflop.train.checkpoint import find, save
from tiny_runs import assert_bit_equal, saved, strict_json, tiny_run


def save_step(folder: Path, step: int) -> None:
    save(folder, {"w": torch.full((50,), float(step))}, {"w::m": torch.full((50,), step + 0.5)}, {"step": step})


def die_before(moment: int) -> None:
    """From now on, the process ends at once before its `moment`-th operation on the disk."""
    left = [moment]

    def wrap(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return function(*args, **kwargs)

        return wrapped

    safetensors.torch.save_file = wrap(safetensors.torch.save_file)
    for name in ("rename", "replace", "fsync", "chmod"):
        setattr(os, name, wrap(getattr(os, name)))
    module.shutil.rmtree = wrap(module.shutil.rmtree)  # type: ignore[assignment]


@pytest.mark.parametrize("moment", range(16))
def test_killed_at_each_operation(moment: int, tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    child = os.fork()
    if child == 0:
        die_before(moment)
        save_step(tmp_path, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = find(tmp_path)
    assert found is not None
    step = found.state["step"]
    killed = os.waitstatus_to_exitcode(status) == 9
    assert step in ({1, 2} if killed else {2})
    assert killed or moment > 8  # a save takes at least that many operations
    assert torch.equal(found.weights()["w"], torch.full((50,), float(step)))
    assert torch.equal(found.optimizer()["w::m"], torch.full((50,), step + 0.5))
    save_step(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    again = find(tmp_path)
    assert again is not None
    assert again.state["step"] == 3


def test_the_last_moment_is_after_the_end(tmp_path: Path) -> None:
    """So the moments above do cover the whole of a save."""
    child = os.fork()
    if child == 0:
        save_step(tmp_path, 1)
        die_before(15)
        save_step(tmp_path, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("which", ["save_file", "fsync"])
def test_a_full_disk_keeps_the_old_one_and_says_so(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == 6:
            monkeypatch.setattr(*((safetensors.torch, which, full) if which == "save_file" else (os, which, full)))

    message = "cannot write a checkpoint .*No space left on device; the last complete checkpoint is untouched"
    with pytest.raises(CheckpointError, match=message):
        tiny_run(tmp_path, checkpoint_every=3, on_progress=fill)
    monkeypatch.undo()
    found = find(tmp_path)
    assert found is not None
    assert found.state["step"] == 3
    assert not list(tmp_path.glob("checkpoint.*"))
    tiny_run(tmp_path, checkpoint_every=3)
    tiny_run(tmp_path / "whole")
    assert_bit_equal(saved(tmp_path), saved(tmp_path / "whole"))
    assert strict_json((tmp_path / "run.json").read_text())["status"] == "finished"


def test_a_partial_folder_is_never_counted(tmp_path: Path) -> None:
    save_step(tmp_path, 7)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.partial-x")
    assert find(tmp_path) is None
