"""Fault 087: token ids wrap in 16-bit arrays, or a modulo hides ids outside the vocabulary."""

from dataclasses import replace

import numpy as np
import pytest

from isoflop.data import Data, Loader, load
from isoflop.data.tokens import id_array

IDS = [0, 65535, 65536, 70000]


def test_wide_ids_are_kept_exactly() -> None:
    assert [int(np.array(IDS).astype(np.uint16)[i]) for i in (2, 3)] == [0, 4464]  # what a fixed uint16 would give
    kept = id_array(IDS, 70001)
    assert kept.dtype == np.uint32
    assert kept.tolist() == IDS


@pytest.mark.parametrize(("vocab", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_the_dtype_follows_the_vocabulary(vocab: int, dtype: type) -> None:
    kept = id_array([0, vocab - 1], vocab)
    assert kept.dtype == dtype
    assert kept.tolist() == [0, vocab - 1]


@pytest.mark.parametrize("bad", [70000, 65536, -1])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=rf"token id {bad} is outside the vocabulary 0\.\.65535"):
        id_array([0, 65535, bad], 65536)


def test_wide_ids_reach_the_batch_exactly() -> None:
    corpus = load(Data(source="pydoc", limit=20_000))
    wide = replace(corpus, train=id_array(IDS * 40, 70001), train_starts=np.array([0]))
    batch = Loader(wide, batch=1, length=159).batch(0)
    assert batch.tokens_BT[0].tolist() == (IDS * 40)[:-1]
    assert batch.targets_BT[0].tolist() == (IDS * 40)[1:]


def test_a_negative_target_is_not_an_id() -> None:
    """Unsigned storage would turn -100 into a large id; batches are int64 before targets are masked."""
    corpus = load(Data(source="pydoc", limit=20_000))
    loader = Loader(corpus, batch=4, length=640, packing="documents")
    targets = {int(target) for batch in loader.validation() for target in batch.targets_BT.flatten()}
    assert -100 in targets
    assert all(target == -100 or 0 <= target < 256 for target in targets)
