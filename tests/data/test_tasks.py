import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from isoflop.data import Data, PairCorpus, PairLoader, Task, load
from isoflop.data.pairs import Pair, held_out
from isoflop.data.tasks import ALPHABET, Addition, Draws, Induction, Recall
from isoflop.spec import SpecError

TASKS = {name: kind for name, kind in Task.kinds.items() if issubclass(kind, Task)}
SMALL = {"items": 300, "validation_items": 40}


def task(kind: str, **fields: Any) -> Task:
    return Task.parse({"kind": kind, **SMALL, **fields})


def all_pairs(made: Task) -> list[Pair]:
    texts = made.read(None)
    return [*texts.train, *texts.validation, *(pair for pairs in texts.sets.values() for pair in pairs)]


# ------------------------------------------------------------------------------------------- what an item is


@pytest.mark.parametrize(
    ("kind", "symbols", "rule"),
    [
        ("copy", 16, lambda source: source),
        ("reverse", 16, lambda source: "".join(reversed(source))),
        ("sort", 50, lambda source: "".join(c for c in ALPHABET for _ in range(source.count(c)))),
    ],
)
def test_targets_by_a_loop(kind: str, symbols: int, rule: Any) -> None:
    for source, target in all_pairs(task(kind, symbols=symbols, longest=12, extrapolate=[20])):
        assert target == rule(source)
        assert {*source} <= {*ALPHABET[:symbols]}


def test_recall_by_a_loop() -> None:
    for source, target in all_pairs(task("recall", symbols=20, extrapolate=[10])):
        listed, asked = source[:-1], source[-1]
        keys, values = listed[0::2], listed[1::2]
        assert len({*keys}) == len(keys)
        assert {*keys} <= {*ALPHABET[:10]}
        assert {*values} <= {*ALPHABET[10:20]}
        assert [value for key, value in zip(keys, values, strict=True) if key == asked] == [target]


def test_induction_by_a_loop() -> None:
    for source, target in all_pairs(task("induction", symbols=6, extrapolate=[30])):
        listed, asked = source[:-1], source[-1]
        (place,) = [index for index, symbol in enumerate(listed) if symbol == asked]
        assert listed[place + 1] == target


@pytest.mark.parametrize("base", [2, 10, 36])
@pytest.mark.parametrize("reverse", [False, True])
def test_addition_by_python(base: int, reverse: bool) -> None:
    for source, target in all_pairs(task("addition", symbols=base, reverse=reverse, shortest=4, longest=7)):
        left, right = source.split("+")
        assert len(left) == len(right)
        assert "0" not in (left[0], right[0])
        total = target[::-1] if reverse else target
        assert int(left, base) + int(right, base) == int(total, base)
        assert not total.startswith("0")


def test_items_fixed_for_all_time() -> None:
    """Philox bits and our own rules: what a declaration means never changes."""
    first = {name: task(name).read(None).train[1] for name in TASKS}
    assert first == FIRST


FIRST = {
    "copy": ("a92c7", "a92c7"),
    "reverse": ("e3f", "f3e"),
    "sort": ("449aba4", "4449aab"),
    "recall": ("dYsEd", "Y"),
    "induction": ("16d6", "d"),
    "addition": ("863+475", "1338"),
}


@pytest.mark.parametrize("kind", TASKS)
def test_sizes_are_uniform_and_as_declared(kind: str) -> None:
    made = task(kind, symbols=60, shortest=3, longest=6, items=2000, extrapolate=[9, 12])
    size: Any = {
        "recall": lambda pair: (len(pair.source) - 1) // 2,
        "induction": lambda pair: len(pair.source) - 1,
        "addition": lambda pair: len(pair.source.split("+")[0]),
    }.get(kind, lambda pair: len(pair.source))
    texts = made.read(None)
    counts = Counter(map(size, texts.train))
    assert {*counts} == {3, 4, 5, 6}
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 16.3  # chi-squared, 3 degrees, 0.999
    assert {name: {*map(size, pairs)} for name, pairs in texts.sets.items()} == {"size 9": {9}, "size 12": {12}}
    assert all(len({*pairs}) == 40 for pairs in texts.sets.values())


def test_draws_of_different_numbers() -> None:
    draws = Draws("test")
    orders = Counter(tuple(draws.different(4, 2)) for _ in range(2400))
    assert len(orders) == 12
    assert all(left != right for left, right in orders)
    assert sum((count - 200) ** 2 / 200 for count in orders.values()) < 31.3  # 11 degrees, 0.999
    assert sorted(draws.different(9, 9)) == list(range(9))


# ------------------------------------------------------------------------------------------- the split


@pytest.mark.parametrize("kind", TASKS)
def test_training_and_validation_share_nothing(kind: str) -> None:
    texts = task(kind, longest=4, items=200).read(None)
    train, validation = ({pair.source for pair in pairs} for pairs in (texts.train, texts.validation))
    assert (len(train), len(validation)) == (200, 40)
    assert not train & validation


@pytest.mark.parametrize("kind", TASKS)
def test_more_items_begin_with_the_fewer_and_no_number_moves_an_item_across(kind: str) -> None:
    few, many = (task(kind, items=items, validation_items=items // 10).read(None) for items in (200, 400))
    assert many.train[:200] == few.train
    assert many.validation[:20] == few.validation
    other = task(kind, longest=4, items=400).read(None)
    assert not {*other.train} & {*many.validation}
    assert not {*other.validation} & {*many.train}


def test_both_orders_of_a_sum_are_on_one_side() -> None:
    texts = Addition(longest=2, items=2000, validation_items=150).read(None)
    train = {pair.source for pair in texts.train}
    mirrored = {"+".join(reversed(pair.source.split("+"))) for pair in texts.validation}
    assert not train & mirrored
    assert all(held_out("+".join(sorted(source.split("+")))) for source in mirrored)


def test_a_small_space_is_used_up_and_then_refused() -> None:
    """Three symbols, sizes 1 to 3: 3 + 9 + 27 items, each on the side of its hash."""
    held = sum(held_out(a + b + c) for a in "012" for b in ("", *"012") for c in ("", *"012") if b or not c)
    copy = {"kind": "copy", "symbols": 3, "longest": 3}
    texts = Task.parse({**copy, "items": 39 - held, "validation_items": held}).read(None)
    assert len({*texts.train, *texts.validation}) == 39
    with pytest.raises(
        SpecError,
        match=rf"^source\.items: task:copy has only {39 - held} of {40 - held} different items; ask for fewer",
    ):
        load(Data.parse({"source": {**copy, "items": 40 - held, "validation_items": held}}))
    with pytest.raises(SpecError, match=rf"^source\.validation_items: task:copy has only {held} of "):
        load(Data.parse({"source": {**copy, "items": 39 - held, "validation_items": held + 1}}))


# ------------------------------------------------------------------------------------------- ids, digests


def corpus(kind: str, **fields: Any) -> PairCorpus:
    found = load(Data.parse({"source": {"kind": kind, **SMALL, **fields}}))
    assert isinstance(found, PairCorpus)
    return found


def test_ids_are_the_symbols_and_text_comes_back() -> None:
    found = corpus("addition")
    codec = found.tokenizer
    assert codec.encode("019+") == [1, 2, 10, 11]
    assert (codec.end_id, found.separator, found.vocab) == (0, 12, 13)
    source, target = found.train[0]
    row = [*source, found.separator, *target, 0]
    left, _, right = codec.decode(row).partition("\t")
    assert sum(map(int, left.split("+"))) == int(right)
    assert found.token_bytes.tolist() == [0, *[1] * 11, 0]
    with pytest.raises(ValueError, match="'x' is no symbol of this task"):
        codec.encode("1x")


def test_two_bytes_for_letters_beyond_ascii() -> None:
    assert len({*ALPHABET}) == 256
    assert ALPHABET.isprintable()
    assert corpus("copy", symbols=256).token_bytes.tolist() == [0, *[1] * 62, *[2] * 194, 0]


def test_every_field_that_changes_the_items_changes_the_digest() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"symbols": 15},
        {"shortest": 2},
        {"longest": 7},
        {"items": 299},
        {"validation_items": 39},
        {"extrapolate": [9]},
        {"extrapolate": [10]},
    ]
    declared = [Data.parse({"source": {"kind": "copy", **SMALL, **change}}) for change in changes]
    assert len({data.digest for data in declared}) == len(changes)
    found = [load(data) for data in declared]
    assert len({one.digest for one in found}) == len(changes)
    assert len({corpus(kind).digest for kind in TASKS}) == len(TASKS)
    assert corpus("addition").digest != corpus("addition", reverse=True).digest


def test_another_process_makes_the_same_items() -> None:
    code = (
        "from isoflop.data import *; d = Data.parse({'source': {'kind': 'recall', 'items': 300, 'validation_items': 40}});"
        "c = load(d); l = make_loader(d, c, form='decoder', batch=4, length=20, seed=3); print(c.digest, l.batch(5).tokens_BT.tolist())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    here = corpus("recall")
    from isoflop.data import ONE_ROW

    batch = PairLoader(here, layout=ONE_ROW, batch=4, length=20, seed=3).batch(5)
    assert said == [f"{here.digest} {batch.tokens_BT.tolist()}\n"] * 2


# ------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize("kind", TASKS)
def test_a_name_is_the_table_with_defaults(kind: str) -> None:
    named = Data.parse({"source": f"task:{kind}"})
    assert named == Data.parse({"source": {"kind": kind}})
    assert Data.parse(named.dump()) == named
    assert named.override({"source": {"items": 7}}).source.items == 7  # type: ignore[union-attr]


def test_the_name_of_a_kind_is_the_kind_and_other_words_are_paths() -> None:
    assert Data.parse({"source": "copy"}) == Data.parse({"source": "task:copy"})
    table = {"kind": "copy", "longest": 3}
    assert Data.parse({"source": {**table, "kind": "task:copy"}}) == Data.parse({"source": table})
    named = Data.parse({"source": {"kind": "translation:en-de", "target": "fr"}}).source
    assert named == Data.parse({"source": "translation:en-fr"}).source
    for path in ("./copy", "copy/", "copy.txt", "Copy", "tasks:copy"):
        assert Data(source=path).source == path


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"source": "task:cpy"}, r"^source: 'cpy' is no kind of Task; .* addition\. Did you mean 'copy'"),
        (
            {"source": "task:translation"},
            r"^source: 'translation' is a source of pairs and no task; write 'translation' without 'task:'$",
        ),
        ({"source": 5}, r"^source: must be a path, .*came 5"),
        ({"source": {"kind": "copy", "itms": 5}}, r"^source.itms: unknown field.*Did you mean 'items'"),
        ({"source": {"kind": "copy", "shortest": 9}}, r"^source.shortest: must be at most the longest \(8\), came 9"),
        (
            {"source": {"kind": "copy", "extrapolate": [8]}},
            r"^source.extrapolate: must be beyond the longest \(8\), came 8",
        ),
        ({"source": {"kind": "copy", "extrapolate": [9, 9]}}, r"^source.extrapolate: must name each size once"),
        ({"source": {"kind": "copy", "symbols": 257}}, r"^source.symbols: .*less than or equal to 256"),
        ({"source": {"kind": "recall", "extrapolate": [33]}}, r"^source.symbols: must be at least 66, .* came 64"),
        ({"source": {"kind": "induction", "shortest": 1}}, r"^source.shortest: .*greater than or equal to 2"),
        ({"source": "task:copy", "packing": "documents"}, r"^packing: has no effect on pairs of 'task:copy'"),
        (
            {"source": "task:copy", "tokenizer": "bpe"},
            r"^tokenizer: has no effect on pairs of 'task:copy', came \{'kind': 'bpe'",
        ),
        ({"source": "task:copy", "limit": 9}, r"^limit: has no effect on pairs of 'task:copy', came 9; leave it out"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_errors_of_the_declaration(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Data.parse(table)


def test_largest_sizes_that_can_be_made() -> None:
    assert Recall(symbols=16, longest=8).read(None).train
    assert Induction(symbols=2, shortest=2, longest=9, items=50, validation_items=3).read(None).train
