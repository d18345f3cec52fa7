"""Fault 086: workers or epochs repeat each other's draws, because they share or copy one global generator."""

import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from isoflop.data import Batch, Data, Loader, load

STEPS = list(range(24))


def fresh() -> Loader:
    return Loader(load(Data(source="pydoc", limit=20_000)), batch=16, length=64, packing="documents")


def lists(batch: Batch) -> list[list[list[int]]]:
    return [tensor.tolist() for tensor in vars(batch).values() if tensor is not None]


def content(step: int) -> list[list[list[int]]]:
    """All of a batch, from a loader of its own with every global generator in the same state."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return lists(fresh().batch(step))


@pytest.fixture(scope="module")
def expected() -> list[list[list[list[int]]]]:
    loader = fresh()
    return [lists(loader.batch(step)) for step in STEPS]


def test_processes_see_the_same_batches(expected: list[list[list[list[int]]]]) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(content, STEPS, chunksize=5)) == expected


def test_threads_that_share_a_loader_see_the_same_batches(expected: list[list[list[list[int]]]]) -> None:
    loader = fresh()
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(loader.batch, STEPS * 5))
    assert [lists(batch) for batch in batches] == expected * 5


def test_epochs_and_seeds_differ_under_equal_global_seeds(expected: list[list[list[list[int]]]]) -> None:
    tokens = [batch[0] for batch in expected]
    assert len({str(batch) for batch in tokens}) == len(STEPS)
    other = Loader(fresh().corpus, batch=16, length=64, packing="documents", seed=1)
    assert all(other.batch(step).tokens_BT.tolist() != tokens[step] for step in STEPS)


def test_no_global_generator_is_touched() -> None:
    loader = fresh()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    for step in STEPS:
        loader.batch(step)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert after == before
