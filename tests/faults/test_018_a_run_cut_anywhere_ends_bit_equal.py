"""Fault 018: a resumed run differs from an uninterrupted one."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isoflop.data import Loader
from isoflop.train import Interrupted
from tiny_runs import assert_bit_equal, metrics, saved, tiny_corpus, tiny_run

OPTIONS = {"steps": 10, "evaluate_every": 4, "accumulate": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    tiny_run(folder, **OPTIONS)
    return folder


@pytest.mark.parametrize("cuts", [*([cut] for cut in range(1, 10)), [3, 4, 8]])
def test_losses_weights_and_moments(whole: Path, tmp_path: Path, cuts: list[int]) -> None:
    for cut in cuts:

        def told(line: dict[str, Any], cut: int = cut) -> None:
            if line["kind"] == "train" and line["step"] == cut:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            tiny_run(tmp_path, on_progress=told, **OPTIONS)
        assert metrics(tmp_path)[-1]["step"] == cut
    record = tiny_run(tmp_path, **OPTIONS)
    assert_bit_equal(saved(tmp_path), saved(whole))
    assert metrics(tmp_path) == metrics(whole)
    assert record["result"]["loss"] == metrics(whole)[-1]["loss"]


def test_an_epoch_is_a_permutation_from_wherever_it_is_read() -> None:
    loader = Loader(tiny_corpus(), batch=4, length=16)
    steps = -(-loader.windows // 4)
    ids = np.concatenate([loader.sample_ids(step) for step in range(steps)])[: loader.windows]
    assert sorted(ids) == list(range(loader.windows))
    assert np.array_equal(Loader(tiny_corpus(), batch=4, length=16).sample_ids(3), loader.sample_ids(3))
