import hashlib
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoflop.data import BPE, Batch, Corpus, Data, Loader, load, read_documents
from isoflop.data.loader import window_count, window_order
from isoflop.spec import SpecError


def same(left: Batch, right: Batch) -> bool:
    pairs = zip(vars(left).values(), vars(right).values(), strict=True)
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def tensors(batch: Batch) -> list[torch.Tensor]:
    return [tensor for tensor in vars(batch).values() if tensor is not None]


def write(folder: Path, *texts: str) -> Data:
    folder.mkdir(exist_ok=True)
    for index, text in enumerate(texts):
        (folder / f"{index:03}.txt").write_bytes(text.encode())
    return Data(source=str(folder))


# ------------------------------------------------------------------------------------------- corpus


def test_streams_are_the_documents_each_closed_by_the_end_id(corpus: Corpus, folder: Path) -> None:
    text = {document.name: document.data for document in read_documents(str(folder))}
    for tokens, starts, names in (
        (corpus.train, corpus.train_starts, corpus.train_names),
        (corpus.validation, corpus.validation_starts, corpus.validation_names),
    ):
        assert tokens.tobytes() == b"".join(text[name] + b"\0" for name in names)
        assert tokens.dtype == np.uint8
        for name, start, end in zip(names, starts, [*starts[1:], len(tokens)], strict=True):
            assert tokens[start:end].tobytes() == text[name] + b"\0"
    assert not set(corpus.train_names) & set(corpus.validation_names)


def test_arrays_cannot_be_written(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="read-only"):
        corpus.train[0] = 1
    before = corpus.train.copy()
    Loader(corpus, length=8).batch(0).tokens_BT.fill_(7)
    assert np.array_equal(corpus.train, before)


def test_bpe_is_trained_on_the_training_split_only(tmp_path: Path) -> None:
    data = write(tmp_path / "a", *["ab " * 200] * 9, "zq" * 30)
    corpus = load(data.override({"tokenizer": {"kind": "bpe", "vocab": 300}}))
    assert corpus.validation_names == ("009.txt",)
    assert len(corpus.validation) == 60 + 1  # no pair of it was merged
    assert len(corpus.train) < 9 * 600 / 2
    assert corpus.train.dtype == np.uint16
    assert corpus.token_bytes[corpus.train].sum() == 9 * 600


def test_default_corpus_loads_in_two_seconds() -> None:
    start = time.perf_counter()
    corpus = load(Data())
    assert time.perf_counter() - start < 2
    assert len(corpus.train) > 5_000_000
    assert 0.08 < len(corpus.validation) / len(corpus.train) < 0.12


def test_digest_names_text_split_boundaries_and_vocabulary(tmp_path: Path) -> None:
    texts = ["a" * 20, "b" * 30, "c" * 300]
    data = write(tmp_path / "a", *texts)
    first = load(data)
    assert load(write(tmp_path / "b", *texts)).digest == first.digest
    assert len(bytes.fromhex(first.digest)) == 32
    others = [
        load(write(tmp_path / "c", "a" * 20, "b" * 30, "c" * 299 + "d")),
        load(data.override({"limit": 100})),
        load(data.override({"tokenizer": {"kind": "bpe", "vocab": 257}})),
        load(write(tmp_path / "d", "a" * 20, "b" * 30, "c" * 150, "c" * 149)),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 5


def test_vocabulary_of_the_model_must_hold_every_id(corpus: Corpus) -> None:
    corpus.check_vocab(256)
    corpus.check_vocab(300)
    with pytest.raises(SpecError, match=r"vocab: must be at least 256, .* came 255"):
        corpus.check_vocab(255)


def test_declaring_data_does_not_import_torch() -> None:
    code = "import sys, isoflop.data as d; d.load(d.Data(limit=1000)); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# ------------------------------------------------------------------------------------------- order


@given(st.integers(1, 500), st.integers(-5, 5), st.integers(0, 9))
def test_order_is_a_permutation(windows: int, seed: int, epoch: int) -> None:
    assert sorted(window_order(windows, seed, epoch)) == list(range(windows))


def test_order_is_fixed_for_all_time() -> None:
    """Philox and a stable sort, whatever numpy does with its generators: old digests keep their meaning."""
    assert window_order(10, 0, 0).tolist() == [8, 0, 9, 5, 6, 3, 7, 2, 1, 4]
    assert window_order(10, 0, 1).tolist() == [7, 9, 8, 3, 0, 1, 2, 5, 4, 6]


def test_orders_of_seeds_and_epochs_differ() -> None:
    orders = {tuple(window_order(50, seed, epoch)) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64


def test_order_is_uniform() -> None:
    """Each of the 24 orders of four windows about as often: chi-squared with 23 degrees of freedom, 0.999 quantile 49.7."""
    counts = Counter(tuple(window_order(4, 0, epoch)) for epoch in range(4800))
    assert sum((counts[order] - 200) ** 2 / 200 for order in counts) + 200 * (24 - len(counts)) < 49.7


@pytest.mark.parametrize("batch", [1, 3, 16, 1000])
def test_sample_ids_of_each_epoch_are_a_permutation(corpus: Corpus, batch: int) -> None:
    loader = Loader(corpus, batch=batch, length=32, seed=5)
    steps = -(-3 * loader.windows // batch)
    ids = np.concatenate([loader.sample_ids(step) for step in range(steps)])
    epochs = [ids[e * loader.windows : (e + 1) * loader.windows].tolist() for e in range(3)]
    assert all(sorted(epoch) == list(range(loader.windows)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_batch_size_does_not_change_the_order(corpus: Corpus) -> None:
    small, large = Loader(corpus, batch=4, length=32), Loader(corpus, batch=12, length=32)
    rows = torch.cat([small.batch(step).tokens_BT for step in range(30)])
    assert torch.equal(rows, torch.cat([large.batch(step).tokens_BT for step in range(10)]))


# ------------------------------------------------------------------------------------------- batches


def test_targets_are_the_next_tokens_and_each_token_is_one_once(corpus: Corpus) -> None:
    loader = Loader(corpus, batch=1, length=50)
    seen: Counter[int] = Counter()
    for step in range(loader.windows):
        batch, (window,) = loader.batch(step), loader.sample_ids(step)
        assert batch.positions_BT is None
        assert batch.documents_BT is None
        for place, (token, target) in enumerate(
            zip(batch.tokens_BT[0].tolist(), batch.targets_BT[0].tolist(), strict=True)
        ):
            at = int(window) * 50 + place
            if target == -100:
                assert at + 1 >= len(corpus.train)
            else:
                assert (token, target) == (corpus.train[at], corpus.train[at + 1])
                seen[at + 1] += 1
    assert seen == Counter(range(1, len(corpus.train)))


def test_tokens_are_counted_without_filling(corpus: Corpus) -> None:
    loader = Loader(corpus, batch=3, length=7)
    counts = [sum(int((loader.batch(step).targets_BT != -100).sum()) for step in range(steps)) for steps in range(4)]
    assert [loader.tokens(steps) for steps in range(4)] == counts
    whole = Loader(corpus, batch=loader.windows, length=7)
    assert [whole.tokens(epochs) for epochs in range(3)] == [epochs * (len(corpus.train) - 1) for epochs in range(3)]
    assert (loader.windows * 7 > len(corpus.train) - 1, loader.dropped) == (True, (0, 0))


def test_shapes_and_types(corpus: Corpus) -> None:
    batch = Loader(corpus, batch=3, length=17, packing="documents").batch(2)
    for tensor in tensors(batch):
        assert tensor.shape == (3, 17)
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
    moved = batch.to("meta")
    assert all(tensor.device.type == "meta" for tensor in tensors(moved))
    assert Loader(corpus, batch=3, length=17).batch(2).to("meta").positions_BT is None


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_batches_are_cheap(packing: str) -> None:
    """Under 2 ms at the default size, on a busy machine; about 0.1 ms on an idle one."""
    loader = Loader(load(Data()), packing=packing)  # type: ignore[arg-type]
    loader.batch(0)
    times = []
    for step in range(20):
        start = time.perf_counter()
        loader.batch(step)
        times.append(time.perf_counter() - start)
    assert sorted(times)[10] < 2e-3


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("batch", [1, 2, 7, 64, 5000])
def test_validation_counts_every_target_once(corpus: Corpus, batch: int, packing: str) -> None:
    loader = Loader(corpus, batch=16, length=48, packing=packing)  # type: ignore[arg-type]
    batches = list(loader.validation(batch))
    targets = torch.cat([b.targets_BT.flatten() for b in batches])
    starts = set(corpus.validation_starts.tolist()) if packing == "documents" else set()
    expected = [int(corpus.validation[at]) for at in range(1, len(corpus.validation)) if at not in starts]
    assert targets[targets != -100].tolist() == expected
    assert sum(len(b.tokens_BT) for b in batches) == window_count(corpus.validation, 48)
    assert all(len(b.tokens_BT) == batch for b in batches[:-1])


def test_validation_is_the_same_for_every_batch_size_and_seed(corpus: Corpus) -> None:
    rows = [
        torch.cat([b.tokens_BT for b in Loader(corpus, batch=4, length=48, seed=seed).validation(size)])
        for seed, size in ((0, None), (1, 3), (2, 1000))
    ]
    assert all(torch.equal(rows[0], other) for other in rows[1:])


def test_short_window_is_filled_with_end_ids_that_have_no_target(tmp_path: Path) -> None:
    corpus = load(write(tmp_path / "a", "abcd", "x" * 100))
    assert corpus.validation_names == ("000.txt",)
    (batch,) = Loader(corpus, length=8).validation()
    assert batch.tokens_BT.tolist() == [[97, 98, 99, 100, 0, 0, 0, 0]]
    assert batch.targets_BT.tolist() == [[98, 99, 100, 0, -100, -100, -100, -100]]


# ------------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize("length", [1, 7, 64, 700])
def test_documents_by_a_loop(tmp_path: Path, length: int) -> None:
    corpus = load(
        write(tmp_path / "a", *["abcdefgh"[: 1 + index % 8] * (1 + index % 3) for index in range(60)], "z" * 900)
    )
    text = {document.name: document.data for document in read_documents(corpus.source)}
    flat = [(token, number) for number, name in enumerate(corpus.train_names) for token in text[name] + b"\0"]
    loader = Loader(corpus, batch=4, length=length, packing="documents")
    for step in range(-(-loader.windows // 4)):
        batch = loader.batch(step)
        for row, window in enumerate(loader.sample_ids(step)):
            position = 0
            for place in range(length):
                at = int(window) * length + place
                token, document = flat[at] if at < len(flat) else (0, len(corpus.train_names))
                after = flat[at + 1] if at + 1 < len(flat) else None
                before = flat[at - 1][1] if 0 < at <= len(flat) else None
                position = 0 if place == 0 or (at <= len(flat) and document != before) else position + 1
                got = [int(tensor[row, place]) for tensor in tensors(batch)]
                target = after[0] if after is not None and after[1] == document else -100
                assert got == [token, target, position, document]


# ------------------------------------------------------------------------------------------- digest, errors


def test_stream_digest_names_everything_a_run_sees(corpus: Corpus, folder: Path) -> None:
    def digest(steps: int = 10, data: Corpus = corpus, **options: object) -> str:
        return Loader(data, **{"batch": 4, "length": 32, **options}).stream_digest(steps)  # type: ignore[arg-type]

    other = load(Data(source=str(folder), limit=9000))
    changed = [
        digest(11),
        digest(seed=1),
        digest(batch=5),
        digest(length=33),
        digest(packing="documents"),
        digest(data=other),
    ]
    assert len({digest(), *changed}) == 7
    assert digest() == digest(data=load(Data(source=str(folder))))
    assert len(bytes.fromhex(digest())) == hashlib.sha256().digest_size


def test_errors_of_the_loader(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="batch: must be at least 1, came 0"):
        Loader(corpus, batch=0)
    with pytest.raises(SpecError, match="length: must be at least 1, came 0"):
        Loader(corpus, length=0)
    with pytest.raises(
        SpecError, match=r"packing: must be one of stream, documents, came 'document'\. Did you mean 'documents'"
    ):
        Loader(corpus, packing="document")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step must be at least 0, came -1"):
        Loader(corpus).batch(-1)
    with pytest.raises(SpecError, match="batch: must be at least 1, came 0"):
        next(Loader(corpus).validation(0))
    small = load(write(tmp_path / "a", "abc", "x" * 49))
    assert Loader(small, length=49).windows == 1
    with pytest.raises(SpecError, match=r"source: the training split of .* must hold 51 tokens, came 50"):
        Loader(small, length=50)


def test_errors_of_the_declaration() -> None:
    with pytest.raises(SpecError, match=r"limit: .*greater than 0, came 0"):
        Data(limit=0)
    with pytest.raises(SpecError, match=r"packing: .*'stream' or 'documents'.*came 'doc'"):
        Data.parse({"packing": "doc"})
    with pytest.raises(SpecError, match=r"unknown field.*Did you mean 'source'"):
        Data.parse({"sorce": "x"})
    with pytest.raises(SpecError, match="source: 'stdlb' is neither"):
        load(Data(source="stdlb"))


def test_bpe_window_of_wide_ids(tmp_path: Path) -> None:
    corpus = load(write(tmp_path / "a", "ab cd " * 50, "ab " * 9).override({"tokenizer": BPE(vocab=260).dump()}))
    batch = Loader(corpus, batch=1, length=20).batch(0)
    assert corpus.tokenizer.decode(batch.tokens_BT[0].tolist()) in "ab cd " * 50
