"""Fault 042: opening a checkpoint can run code."""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from isoflop.train import Interrupted, load_model
from tiny_runs import tiny_run

FILES = [
    "run.json",
    "tokenizer.json",
    "checkpoint/model.safetensors",
    "checkpoint/optimizer.safetensors",
    "checkpoint/state.json",
]


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_pickle_in_its_place_is_refused_and_never_run(name: str, form: str, tmp_path: Path) -> None:
    def told(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    folder, marker = tmp_path / "run", tmp_path / "marker"
    with pytest.raises(Interrupted):
        tiny_run(folder, on_progress=told)
    if form == "torch":
        torch.save(Bomb(marker), folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(Bomb(marker)))
    named = name.rpartition("/")[2].replace(".", r"\.")
    with pytest.raises(ValueError, match=named):
        load_model(folder)
    if name != "tokenizer.json":  # written anew by a run that goes on
        with pytest.raises(ValueError, match=named):
            tiny_run(folder)
    assert not marker.exists()
