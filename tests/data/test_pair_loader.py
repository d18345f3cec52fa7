import hashlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoflop.data import ONE_ROW, TWO_ROWS, Data, PairCorpus, PairLoader, load
from isoflop.spec import SpecError


def corpus_of(**fields: Any) -> PairCorpus:
    source = {"kind": "reverse", "symbols": 12, "longest": 6, "items": 300, "validation_items": 37, **fields}
    found = load(Data.parse({"source": source}))
    assert isinstance(found, PairCorpus)
    return found


@pytest.fixture(scope="module")
def corpus() -> PairCorpus:
    return corpus_of(extrapolate=[8, 20])


def content(corpus: PairCorpus, index: int, split: str = "train") -> tuple[list[int], list[int]]:
    source, target = getattr(corpus, split)[index]
    return source.tolist(), target.tolist()


# ------------------------------------------------------------------------------------------- rows


def test_two_rows_by_a_loop(corpus: PairCorpus) -> None:
    loader = PairLoader(corpus, layout=TWO_ROWS, batch=300, length=9)
    batch = loader.batch(0)
    seen = set()
    for row in range(300):
        pad = lambda ids, value: [*ids, *[value] * (9 - len(ids))]  # noqa: E731
        source = [int(i) for i, d in zip(batch.source_BS[row], batch.source_documents_BS[row], strict=True) if d == 0]  # type: ignore[index]
        target = source[::-1]
        assert batch.source_BS[row].tolist() == pad(source, 0)  # type: ignore[index]
        assert batch.source_documents_BS[row].tolist() == pad([0] * len(source), -1)  # type: ignore[index]
        assert batch.tokens_BT[row].tolist() == pad([0, *target], 0)
        assert batch.targets_BT[row].tolist() == pad([*target, 0], -100)
        seen.add(tuple(source))
    assert seen == {tuple(content(corpus, index)[0]) for index in range(300)}
    assert batch.positions_BT is batch.documents_BT is None


def test_one_row_by_a_loop(corpus: PairCorpus) -> None:
    batch = PairLoader(corpus, layout=ONE_ROW, batch=300, length=15).batch(0)
    seen = set()
    for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
        at = tokens.index(corpus.separator)
        source, target = tokens[:at], tokens[:at][::-1]
        whole = [*source, 13, *target, 0]
        assert tokens == [*whole, *[0] * (15 - len(whole))]
        wanted = [-100] * at + whole[at + 1 :]
        assert targets == [*wanted, *[-100] * (15 - len(wanted))]
        seen.add(tuple(source))
    assert len(seen) == 300
    assert batch.source_BS is batch.source_documents_BS is None


@pytest.mark.parametrize("layout", [ONE_ROW, TWO_ROWS], ids=lambda layout: layout.name)
def test_both_layouts_have_the_same_targets(corpus: PairCorpus, layout: Any) -> None:
    batch = PairLoader(corpus, layout=layout, batch=50, length=15, seed=3).batch(1)
    reference = PairLoader(corpus, layout=TWO_ROWS, batch=50, length=15, seed=3).batch(1)
    answers = [[t for t in row if t != -100] for row in batch.targets_BT.tolist()]
    assert answers == [[t for t in row if t != -100] for row in reference.targets_BT.tolist()]
    assert all(tensor.dtype == torch.int64 and tensor.shape == (50, 15) for tensor in given(batch))


def given(batch: Any) -> list[torch.Tensor]:
    return [tensor for tensor in vars(batch).values() if tensor is not None]


# ------------------------------------------------------------------------------------------- what fits


def test_longer_pairs_are_left_out_whole_and_counted(corpus: PairCorpus) -> None:
    """A pair of n and n symbols needs n + 1 in two rows, and 2 n + 1 in one."""
    sizes = corpus.train.source_sizes, corpus.validation.source_sizes
    for layout, length, longest in ((TWO_ROWS, 5, 4), (TWO_ROWS, 7, 6), (ONE_ROW, 9, 4), (ONE_ROW, 8, 3)):
        loader = PairLoader(corpus, layout=layout, batch=8, length=length)
        assert loader.dropped == tuple(int((size > longest).sum()) for size in sizes)
        assert loader.windows == 300 - loader.dropped[0]
        epoch = [row for step in range(-(-loader.windows // 8)) for row in loader.batch(step).targets_BT.tolist()]
        ends = {sum(target != -100 for target in row) - 1 for row in epoch}
        assert ends == set(range(1, longest + 1))
        held = [row for part in loader.validation() for row in part.targets_BT.tolist()]
        assert len(held) == 37 - loader.dropped[1]


@pytest.mark.parametrize("layout", [ONE_ROW, TWO_ROWS], ids=lambda layout: layout.name)
@pytest.mark.parametrize("steps", [0, 1, 5, 37, 38, 90])
def test_tokens_are_counted_without_filling(corpus: PairCorpus, layout: Any, steps: int) -> None:
    """A pair of n and n symbols holds 2 n and a separator or begin; ids of text are above 0, the end id is 0."""
    loader = PairLoader(corpus, layout=layout, batch=8, length=20, seed=1)
    counted = 0
    for step in range(steps):
        batch = loader.batch(step)
        symbols = sum(int((tensor > 0).sum()) for tensor in (batch.tokens_BT, batch.source_BS) if tensor is not None)
        counted += symbols + (8 if layout is TWO_ROWS else 0)
    assert loader.tokens(steps) == counted


def test_source_longer_than_target() -> None:
    recall = corpus_of(kind="recall", symbols=20, shortest=2)
    assert PairLoader(recall, layout=TWO_ROWS, length=5).windows == int((recall.train.source_sizes <= 5).sum())
    with pytest.raises(
        SpecError, match=r"^length: must be at least 5 for the shortest training pair of 'task:recall' to fit, came 4"
    ):
        PairLoader(recall, layout=TWO_ROWS, length=4)
    with pytest.raises(SpecError, match=r"^length: must be at least 7 .*came 6"):
        PairLoader(recall, layout=ONE_ROW, length=6)
    only = replace(recall, validation=PairSplitOf(recall, 6))
    with pytest.raises(SpecError, match=r"^length: must be at least 13 for the shortest validation pair"):
        PairLoader(only, layout=TWO_ROWS, length=12)


def PairSplitOf(corpus: PairCorpus, size: int) -> Any:  # noqa: N802
    """The first pair of a size, alone."""
    index = int(np.flatnonzero(corpus.validation.source_sizes == 2 * size + 1)[0])
    source, target = corpus.validation[index]
    return type(corpus.validation)(source, np.array([0, len(source)]), target, np.array([0, len(target)]))


def test_errors(corpus: PairCorpus) -> None:
    with pytest.raises(SpecError, match="batch: must be at least 1, came 0"):
        PairLoader(corpus, batch=0)
    with pytest.raises(SpecError, match="length: must be at least 1, came 0"):
        PairLoader(corpus, length=0)
    with pytest.raises(SpecError, match="batch: must be at least 1, came 0"):
        next(PairLoader(corpus).validation(0))
    with pytest.raises(ValueError, match="step must be at least 0, came -1"):
        PairLoader(corpus).batch(-1)


# ------------------------------------------------------------------------------------------- order


def test_an_epoch_visits_every_pair_once_and_batches_are_a_function(corpus: PairCorpus) -> None:
    loader = PairLoader(corpus, batch=25, length=9, seed=4)
    epochs = [
        [tuple(row) for step in range(e * 12, e * 12 + 12) for row in loader.batch(step).source_BS.tolist()]
        for e in (0, 1)
    ]  # type: ignore[union-attr]
    assert len({*epochs[0]}) == 300
    assert {*epochs[0]} == {*epochs[1]}
    assert epochs[0] != epochs[1]
    fresh = PairLoader(corpus_of(extrapolate=[8, 20]), batch=25, length=9, seed=4).batch(17)
    assert all(torch.equal(a, b) for a, b in zip(given(fresh), given(loader.batch(17)), strict=True))
    assert not torch.equal(PairLoader(corpus, batch=25, length=9, seed=5).batch(0).tokens_BT, loader.batch(0).tokens_BT)


@pytest.mark.parametrize("size", [1, 5, 37, 100])
def test_validation_is_the_same_for_every_batch_size_and_seed(corpus: PairCorpus, size: int) -> None:
    parts = list(PairLoader(corpus, batch=3, length=9, seed=size).validation(size))
    rows = torch.cat([part.source_BS for part in parts])  # type: ignore[misc]
    expected = [content(corpus, index, "validation")[0] for index in range(37)]
    assert [[token for token in row if token] for row in rows.tolist()] == expected
    assert all(len(part.tokens_BT) == size for part in parts[:-1])


def test_stream_digest_names_everything_a_run_sees(corpus: PairCorpus) -> None:
    def digest(steps: int = 10, data: PairCorpus = corpus, **options: Any) -> str:
        return PairLoader(data, **{"batch": 4, "length": 15, **options}).stream_digest(steps)

    changed = [
        digest(11),
        digest(seed=1),
        digest(batch=5),
        digest(length=16),
        digest(layout=ONE_ROW),
        digest(data=corpus_of()),
        digest(data=corpus_of(symbols=13)),
    ]
    assert len({digest(), *changed}) == 8
    assert digest() == digest(data=corpus_of(extrapolate=[8, 20]))
    assert len(bytes.fromhex(digest())) == hashlib.sha256().digest_size


# ------------------------------------------------------------------------------------------- longer items


@pytest.mark.parametrize(("layout", "need"), [(TWO_ROWS, (9, 21)), (ONE_ROW, (17, 41))], ids=["two", "one"])
def test_extrapolation_sets_are_loaders_of_their_own(corpus: PairCorpus, layout: Any, need: tuple[int, int]) -> None:
    loader = PairLoader(corpus, layout=layout, batch=8, length=16)
    found = loader.extrapolation()
    assert [*found] == ["size 8", "size 20"]
    assert [one.length for one in found.values()] == [max(16, need[0]), need[1]]
    for size, one in zip((8, 20), found.values(), strict=True):
        rows = torch.cat([part.targets_BT for part in one.validation()])
        assert len(rows) == 37
        assert ((rows != -100).sum(1) == size + 1).all()
        assert one.dropped[1] == 0
        assert one.corpus.vocab == loader.corpus.vocab
    assert PairLoader(corpus_of(), layout=layout, length=16).extrapolation() == {}


def test_arrays_cannot_be_written(corpus: PairCorpus) -> None:
    with pytest.raises(ValueError, match="read-only"):
        corpus.train.sources[0] = 1


def test_pairs_are_declared_and_loaded_without_torch() -> None:
    code = "import sys, isoflop.data as d; d.load(d.Data(source='task:sort')); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
