from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isoflop.data import Batch, Corpus, Data, Loader, Masked, MaskedLoader, Next, Objective, load
from isoflop.data.objective import random_bits
from isoflop.spec import SpecError

MASK = 256


def loader(corpus: Corpus, seed: int = 0, batch: int = 16, packing: Any = "stream", **fields: Any) -> MaskedLoader:
    return MaskedLoader(Loader(corpus, batch=batch, length=32, seed=seed, packing=packing), Masked(**fields))


def tensors(batch: Batch) -> list[list[list[int]]]:
    return [tensor.tolist() for tensor in vars(batch).values() if tensor is not None]


# ------------------------------------------------------------------------------------------- hide


def fraction(value: float) -> int:
    return int(value * 2**64)


def test_hide_by_hand() -> None:
    """Chosen below 0.15; of those masked below 0.8, random below 0.9, kept above; the end id never."""
    rows = [
        # token, choose, fate, draw -> hidden, target
        (65, 0.2, 0.0, 7, 65, -100),
        (65, 0.1, 0.0, 7, 256, 65),
        (66, 0.1, 0.79, 7, 256, 66),
        (67, 0.1, 0.81, 0, 1, 67),
        (67, 0.1, 0.81, 254, 255, 67),
        (67, 0.1, 0.81, 255, 1, 67),
        (68, 0.1, 0.91, 7, 68, 68),
        (0, 0.0, 0.0, 7, 0, -100),
    ]
    tokens = np.array([[row[0] for row in rows]])
    raw = np.array([[[fraction(choose), fraction(fate), draw] for _, choose, fate, draw, *_ in rows]], dtype=np.uint64)
    hidden, targets = Masked().hide(tokens, raw, 0, MASK)
    assert hidden.tolist() == [[row[4] for row in rows]]
    assert targets.tolist() == [[row[5] for row in rows]]


@pytest.mark.parametrize(
    ("rate", "mask", "random"), [(0.15, 0.8, 0.1), (0.4, 1.0, 0.0), (0.3, 0.0, 1.0), (0.5, 0.0, 0.0)]
)
def test_measured_rates_are_the_declared_ones(rate: float, mask: float, random: float) -> None:
    """Within three standard deviations of the binomial, at fixed random bits."""
    tokens = np.full((400, 500), 65)
    tokens[:, ::10] = 0
    hidden, targets = Masked(rate=rate, mask=mask, random=random).hide(tokens, random_bits((400, 500, 3), "t"), 0, MASK)
    text, chosen = tokens != 0, targets != -100
    assert not chosen[~text].any()
    assert (targets[chosen] == 65).all()
    assert (hidden[~chosen] == tokens[~chosen]).all()

    def near(count: int, total: int, share: float) -> bool:
        return abs(count - total * share) <= 3 * (total * share * (1 - share)) ** 0.5

    number = int(chosen.sum())
    other = chosen & (hidden != MASK) & (hidden != 65)
    assert near(number, int(text.sum()), rate)
    assert near(int((hidden[chosen] == MASK).sum()), number, mask)
    assert near(int(other.sum()), number, random * 254 / 255)  # one draw in 255 is the token itself
    assert hidden.min() >= 0
    assert (hidden[other] > 0).all()
    if random == 1.0:
        assert {*hidden[other].tolist()} == {*range(1, 256)} - {65}


# ------------------------------------------------------------------------------------------- the loader


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_windows_are_those_of_the_loader(corpus: Corpus, packing: Any) -> None:
    plain = Loader(corpus, batch=16, length=32, packing=packing)
    masked = loader(corpus, packing=packing)
    for ours, theirs in [
        (masked.batch(9), plain.batch(9)),
        *zip(masked.validation(5), plain.validation(5), strict=True),
    ]:
        chosen = ours.targets_BT != -100
        assert torch.equal(torch.where(chosen, ours.targets_BT, ours.tokens_BT), theirs.tokens_BT)
        assert not chosen[theirs.tokens_BT == 0].any()
        assert tensors(ours)[2:] == tensors(theirs)[2:]
        assert 0 < int(chosen.sum()) < chosen.numel() / 3
    assert (masked.windows, masked.length, masked.batch_size) == (plain.windows, 32, 16)


def test_masks_follow_from_seed_and_step(corpus: Corpus) -> None:
    assert tensors(loader(corpus).batch(4)) == tensors(loader(corpus).batch(4))
    first = loader(corpus)
    epoch = first.windows  # with one window a batch, the same windows come again after an epoch
    single = loader(corpus, batch=epoch)
    chosen = [single.batch(step).targets_BT != -100 for step in (0, 1)]
    assert not torch.equal(*chosen)
    seeds = [loader(corpus, seed=seed, batch=epoch).batch(0).targets_BT != -100 for seed in (0, 1)]
    assert not torch.equal(*seeds)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_validation_is_masked_the_same_every_time(corpus: Corpus, batch: int) -> None:
    def rows(made: MaskedLoader, size: int) -> list[Any]:
        parts = list(made.validation(size))
        return [torch.cat([getattr(part, name) for part in parts]).tolist() for name in ("tokens_BT", "targets_BT")]

    assert rows(loader(corpus, seed=5, batch=3), batch) == rows(loader(corpus), 16)


def test_rows_of_validation_are_masked_differently(corpus: Corpus) -> None:
    """By chance two rows of 32 are masked alike now and then (2016 pairs of rows, 0.745^32 each), of 96 never."""
    long = MaskedLoader(Loader(corpus, length=96), Masked())
    targets = torch.cat([part.targets_BT for part in long.validation()])
    assert len({tuple(row) for row in (targets != -100).tolist()}) == len(targets) > 20


@pytest.mark.parametrize("length", [1, 5, 64, 100, 2000])
def test_validation_hides_the_same_tokens_at_every_length(corpus: Corpus, length: int) -> None:
    """All but the last token of the text, which is no input of a window of any length."""

    def texts(size: int) -> tuple[list[int], list[int]]:
        parts = list(MaskedLoader(Loader(corpus, length=size), Masked()).validation(7))
        rows = [torch.cat([getattr(part, name).flatten() for part in parts]) for name in ("tokens_BT", "targets_BT")]
        end = len(corpus.validation) - 1
        return rows[0][:end].tolist(), rows[1][:end].tolist()

    assert texts(length) == texts(32)


@pytest.mark.parametrize("text", ["ab", "a" * 40])
def test_something_is_hidden_in_the_shortest_text(tmp_path: Path, text: str) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(text)
    masked = MaskedLoader(Loader(load(Data(source=str(tmp_path))), length=2, batch=1), Masked(rate=1e-9))
    first, *others = masked.validation()
    assert first.targets_BT.flatten().tolist() == [ord("a"), -100]
    assert all((other.targets_BT == -100).all() for other in others)


def test_a_validation_text_without_a_token_is_refused(corpus: Corpus) -> None:
    ends = replace(corpus, validation=np.zeros(5, np.uint8), validation_starts=np.arange(5))
    with pytest.raises(SpecError, match=r"source: the validation split of .* holds no token to hide"):
        MaskedLoader(Loader(ends, length=2), Masked())


def test_the_mask_is_an_id_behind_the_last_of_text(corpus: Corpus) -> None:
    masked = loader(corpus)
    assert masked.corpus.vocab == 257
    assert int(masked.batch(0).tokens_BT.max()) == MASK
    assert masked.corpus.token_bytes.tolist() == [*corpus.token_bytes.tolist(), 0]
    assert masked.corpus.digest == corpus.digest
    masked.corpus.check_vocab(257)
    with pytest.raises(SpecError, match=r"vocab: must be at least 257, .* came 256"):
        masked.corpus.check_vocab(256)
    assert "□" in masked.corpus.tokenizer.decode(masked.batch(0).tokens_BT.flatten().tolist())
    assert corpus.vocab == 256


def test_stream_digest_names_every_field(corpus: Corpus) -> None:
    made = [
        loader(corpus),
        loader(corpus, rate=0.2),
        loader(corpus, mask=0.7),
        loader(corpus, random=0.2),
        loader(corpus, seed=1),
        loader(corpus, packing="documents"),
    ]
    plain = Loader(corpus, batch=16, length=32)
    assert len({one.stream_digest(5) for one in [*made, plain]}) == 7
    assert made[0].stream_digest(5) == loader(corpus).stream_digest(5) != made[0].stream_digest(6)


# ------------------------------------------------------------------------------------------- declarations


def test_declarations() -> None:
    assert Objective.parse("next") == Next()
    data = Data.parse({"objective": {"kind": "masked", "rate": 0.3}})
    assert data.objective == Masked(rate=0.3)
    assert Data.parse(data.dump()) == data
    assert "objective" not in Data().dump()
    assert Data().digest == "3dc42b6e2bb6bf04"  # as before there were objectives: old runs keep their names
    digests = {Data.parse({"objective": o}).digest for o in ("next", "masked", {"kind": "masked", "rate": 0.3})}
    assert len({Data().digest, *digests}) == 4


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rate": 0.0}, "rate: .*greater than 0"),
        ({"rate": 1.0}, "rate: .*less than 1"),
        ({"mask": 0.8, "random": 0.3}, r"random: and mask \(0.8\) must be at most 1 together, came 0.3"),
        ({"keep": 0.1}, "keep: unknown field"),
    ],
    ids=str,
)
def test_errors(table: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=rf"^objective\.{message}"):
        Data.parse({"objective": {"kind": "masked", **table}})
