"""What `isoflop kinds` knows of every kind."""

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import isoflop.train  # noqa: F401  # registers the kinds of recipes and data, beside those of the model
from isoflop.catalogue import KindEntry, _default, _takes, catalogue
from isoflop.model.architecture import Positions, Probability
from isoflop.model.slots import Norm, Position
from isoflop.spec import Many, Spec, slots

ENTRIES = {f"{entry.slot}.{entry.kind}": entry for entry in catalogue() if not entry.kind.startswith("test")}
SELF_EXPLAINING = {"Position.none", "Stack.plain", "Tokenizer.bpe", "Activation.identity"}
"""Kinds without a formula and without a paper, because there is nothing to compute or to cite."""


def test_every_registered_kind_is_listed_once_and_one_of_each_slot_is_the_default() -> None:
    listed = catalogue()
    assert [(entry.slot, entry.kind) for entry in listed] == [
        (name, kind) for name, slot in slots().items() for kind in slot.kinds
    ]
    for name, slot in slots().items():
        assert [entry.kind for entry in listed if entry.slot == name and entry.default] == [slot.default_kind]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_every_kind_says_what_it_is_and_where_it_comes_from(entry: KindEntry) -> None:
    assert 20 <= len(entry.summary) <= 200
    assert entry.summary[-1] in ".)"
    assert "Formula:" not in entry.text
    assert "Paper:" not in entry.text
    assert entry.formula or entry.paper or f"{entry.slot}.{entry.kind}" in SELF_EXPLAINING
    if entry.paper:
        assert re.search(r"\b(19|20)\d\d\b|\d{4}\.\d{5}", entry.paper), "a source has a year or a number"
    for field in entry.fields:
        assert not re.search(r"[\[\]<>]|typing|Annotated|Info", field.takes), field
        assert field.required == (field.default is None and field.required)


def test_fields_in_words() -> None:
    rope = ENTRIES["Position.rope"]
    assert rope.default
    assert rope.paper == "Su et al. 2021, arXiv 2104.09864"
    assert [(f.name, f.takes, f.default, f.required) for f in rope.fields] == [
        ("base", "number", 10000.0, False),
        ("fraction", "number", 1.0, False),
        ("layout", "half | interleaved", "half", False),
        ("scaling", "Scaling", "none", False),
    ]
    attention = {field.name: field for field in ENTRIES["Attention.multi_head"].fields}
    assert (attention["kv_heads"].takes, attention["kv_heads"].default) == ("whole number", None)
    assert (attention["qk_norm"].takes, attention["qk_norm"].default) == ("Norm", None)
    plain = {field.name: (field.takes, field.default) for field in ENTRIES["FeedForward.plain"].fields}
    assert plain["activation"] == ("Activation", "relu")
    assert plain["bias"] == ("true | false", False)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "whole number"),
        (float | None, "number"),
        (bool, "true | false"),
        (str, "text"),
        (Probability, "number"),
        (Annotated[int, Field(ge=1)] | None, "whole number"),
        (Annotated[float, Field(gt=0)] | Literal["off"], "number | off"),
        (Literal["a", "b"], "a | b"),
        (Norm, "Norm"),
        (Norm | None, "Norm"),
        (Many[Position], "list of Position"),
        (Positions, "list of Position"),
        (dict[str, float], "table of number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "type",  # an annotation's own text holds addresses
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert _takes(annotation) == words


def test_defaults_are_told_from_what_must_be_given() -> None:
    class Made(Spec):
        given: int
        absent: int | None = None
        listed: Many[str] = ("a", "b")
        inner: Norm = "rms"  # type: ignore[assignment]

    told = {name: (_default(field), field.is_required()) for name, field in Made.model_fields.items()}
    assert told == {
        "given": (None, True),
        "absent": (None, False),
        "listed": (["a", "b"], False),
        "inner": ("rms", False),
    }


def test_what_is_shown_is_plain_data() -> None:
    entry = ENTRIES["Norm.rms"].dump()
    assert entry["fields"][0] == {"name": "eps", "takes": "number", "default": 1e-6, "required": False}
