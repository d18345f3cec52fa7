"""Texts in order: every row goes through a lane of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isoflop.data import Corpus, Data, Loader, load, make_loader
from isoflop.data.lanes import LaneOrder
from isoflop.spec import SpecError
from tiny_runs import tiny_corpus

SHAPES = [(7, 1), (7, 2), (7, 3), (7, 7), (100, 8), (96, 8)]


@pytest.mark.parametrize(("windows", "batch"), SHAPES)
@pytest.mark.parametrize("seed", [0, 5])
def test_an_epoch_holds_every_window_once(windows: int, batch: int, seed: int) -> None:
    order = LaneOrder(windows, seed, batch)
    steps = -(-windows // batch)
    for epoch in range(3):
        ids = np.stack([order.ids(epoch * steps + step, batch) for step in range(steps)])
        assert sorted(ids[ids < windows]) == list(range(windows))
        assert (ids[:-1] < windows).all(), "lanes are as long as each other, to one window"


@pytest.mark.parametrize(("windows", "batch"), SHAPES)
def test_rows_go_on_but_where_an_epoch_or_the_text_begins(windows: int, batch: int) -> None:
    order = LaneOrder(windows, 3, batch)
    steps = -(-windows // batch)
    for step in range(3 * steps):
        ids, continues = order.ids(step, batch), order.continues(step, batch)
        before = order.ids(step - 1, batch) if step else np.full(batch, -9)
        assert continues is not None
        assert continues.tolist() == [old + 1 == new for old, new in zip(before, ids, strict=True)]
        if step % steps:
            alone = (~continues) & (ids < windows)
            assert set(ids[alone]) <= {0}, "the ring closes in at most one row"


def test_the_place_of_the_cut_follows_from_seed_and_epoch() -> None:
    first = [int(LaneOrder(1000, seed, 4).ids(0, 4)[0]) for seed in range(8)]
    assert len(set(first)) == 8
    epochs = [int(LaneOrder(1000, 0, 4).ids(250 * epoch, 4)[0]) for epoch in range(8)]
    assert len(set(epochs)) == 8
    assert first[0] == epochs[0]


def test_tokens_are_counted_without_what_fills_up() -> None:
    loader = Loader(tiny_corpus(), batch=4, length=16, order="continuous")
    for steps in (0, 1, 5, -(-loader.windows // 4), 3 * loader.windows // 4 + 2):
        counted = sum(int((loader.batch(step).targets_BT != -100).sum()) for step in range(steps))
        assert loader.tokens(steps) == counted


def test_rows_are_the_text_from_where_they_stopped() -> None:
    corpus = tiny_corpus()
    loader = Loader(corpus, batch=3, length=16, order="continuous", packing="documents")
    before = loader.batch(0)
    assert before.continues_B is not None
    assert not before.continues_B.any()
    for step in range(1, 12):
        batch = loader.batch(step)
        assert batch.continues_B is not None
        assert before.documents_BT is not None
        assert batch.documents_BT is not None
        for row in batch.continues_B.nonzero().flatten().tolist():
            same = before.documents_BT[row, -1] == batch.documents_BT[row, 0]
            assert before.targets_BT[row, -1] == (batch.tokens_BT[row, 0] if same else -100)
        before = batch


def test_order_is_shuffled_unless_it_is_needed_or_asked_for() -> None:
    corpus = tiny_corpus()
    sizes = {"batch": 4, "length": 16, "seed": 0}

    def ids(order: str | None, remembers: bool) -> list[list[int]]:
        loader = make_loader(Data(source="x", order=order), corpus, form="decoder", remembers=remembers, **sizes)  # type: ignore[arg-type]
        return loader.batch(1).tokens_BT.tolist()

    assert ids(None, False) == ids("shuffled", False) == Loader(corpus, **sizes).batch(1).tokens_BT.tolist()
    assert ids(None, True) == ids("continuous", False) == ids("continuous", True) != ids(None, False)
    with pytest.raises(SpecError, match=r"order: .*needs 'continuous'"):
        ids("shuffled", True)


def test_digest_names_the_order() -> None:
    made = [Loader(tiny_corpus(), order=order).stream_digest(5) for order in ("shuffled", "continuous")]
    assert len(set(made)) == 2


def test_pairs_do_not_go_on() -> None:
    data = Data.parse({"source": {"kind": "copy", "items": 40, "validation_items": 4}})
    with pytest.raises(SpecError, match=r"source: .*pairs do not"):
        make_loader(data, load(data), form="decoder", remembers=True, batch=2, length=20, seed=0)
    with pytest.raises(SpecError, match="order: has no effect on pairs"):
        Data.parse({"source": {"kind": "copy"}, "order": "continuous"})


def test_fewer_windows_than_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 300)
    (tmp_path / "b.txt").write_text("y" * 300)
    corpus = load(Data(source=str(tmp_path)))
    assert isinstance(corpus, Corpus)
    windows = Loader(corpus, length=64).windows
    assert Loader(corpus, length=64, batch=windows, order="continuous").batch(0).tokens_BT.shape == (windows, 64)
    with pytest.raises(SpecError, match=rf"order: .*{windows} windows are fewer than the {windows + 1} rows"):
        Loader(corpus, length=64, batch=windows + 1, order="continuous")


def test_validation_of_one_row_goes_on() -> None:
    told = [batch.continues_B for batch in Loader(tiny_corpus(), length=16).validation(1)]
    assert all(one is not None and one.shape == (1,) for one in told)
    assert torch.cat([one for one in told if one is not None]).tolist() == [False] + [True] * (len(told) - 1)
    assert all(batch.continues_B is None for batch in Loader(tiny_corpus(), length=16).validation(2))
