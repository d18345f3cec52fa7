"""Declarations: refusals that help, changes, digests, files; and that nothing illegal gets as far as memory."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from torch import nn

import kinds
from isoflop.model import Architecture, BlockChange
from isoflop.model.norm import RMS, Layer
from isoflop.model.position import ALiBi, Learned, RoPE, Sinusoidal
from isoflop.model.slots import Activation, Norm
from isoflop.recipes import load, recipes
from isoflop.spec import (
    Slot,
    Spec,
    SpecError,
    did_you_mean,
    field_paths,
    merge,
    merge_trees,
    nest,
    parse_assignments,
    read_toml,
    slots,
    to_toml,
)

# ------------------------------------------------------------------------------------------------------ parsing


def test_a_name_a_table_and_an_instance_are_the_same() -> None:
    expected = RMS(eps=1e-6)
    assert Norm.parse("rms") == Norm.parse({"kind": "rms"}) == Norm.parse(expected) == expected
    assert Norm.parse({"eps": 0.5}) == Layer(eps=0.5)
    assert Architecture(norm="rms") == Architecture(norm=expected) == Architecture(norm={"kind": "rms", "eps": 1e-6})


def test_whole_numbers_are_taken_where_reals_are_due() -> None:
    whole, real = Architecture(position={"base": 500}), Architecture(position={"base": 500.0})
    assert whole == real
    assert whole.digest == real.digest
    assert isinstance(whole.position[0].base, float)


def test_specs_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Architecture().width = 3


def test_a_position_may_be_one_or_many() -> None:
    assert Architecture(position="rope").position == (RoPE(),)
    assert Architecture(position=["sinusoidal", ALiBi()]).position == (Sinusoidal(), ALiBi())
    assert Architecture(position=RoPE(base=5)).position == (RoPE(base=5.0),)


def test_digests_name_content() -> None:
    plain = Architecture()
    assert re.fullmatch(r"[0-9a-f]{16}", plain.digest)
    assert plain.digest == Architecture(norm="layer", depth=6).digest
    assert plain.digest != Architecture(depth=7).digest
    assert plain.digest == Architecture(plugins=["anything"]).digest
    digests = {kinds.tiny(setting.change).digest for setting in kinds.settings()}
    assert len(digests) == len({kinds.tiny(setting.change) for setting in kinds.settings()})


# ------------------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize(
    ("at", "chosen"),
    [("0", [0]), ("-1", [4]), (3, [3]), ("::2", [0, 2, 4]), ("1:3", [1, 2]), (":", [0, 1, 2, 3, 4]), ("-2:", [3, 4])],
)
def test_blocks_are_chosen_as_in_python(at: Any, chosen: list[int]) -> None:
    architecture = kinds.tiny({"depth": 5, "blocks": [{"at": at, "attention": {"window": 3}}]})
    windows = [block.attention.window for block in architecture.declarations]
    assert [number for number, window in enumerate(windows) if window == 3] == chosen
    assert set(windows) <= {3, None}


def test_later_changes_lie_over_earlier_ones() -> None:
    changes = [
        {"at": ":", "attention": {"window": 3, "softcap": 2.0}},
        {"at": "1", "attention": {"window": "default"}, "norm": {"kind": "rms", "eps": 0.5}},
        {"at": "1", "norm": {"cast": "before_gain"}, "ffn": {"kind": "glu"}},
    ]
    first, second = kinds.tiny({"blocks": changes}).declarations
    assert (first.attention.window, first.attention.softcap, first.attention.heads) == (3, 2.0, 6)
    assert (second.attention.window, second.attention.softcap, second.attention.heads) == (None, 2.0, 6)
    assert second.norm == RMS(eps=0.5, cast="before_gain")
    assert first.norm == Layer()
    assert second.ffn.kind == "glu"


def test_positions_of_a_block() -> None:
    base = {"position": ["learned", "rope"]}
    _, changed = kinds.tiny(base, {"blocks": [{"at": "1", "position": {"1": {"base": 5.0}}}]}).declarations
    assert changed.position == (Learned(), RoPE(base=5.0))
    _, changed = kinds.tiny(base, {"blocks": [{"at": "1", "position": "none"}]}).declarations
    assert [position.kind for position in changed.position] == ["none"]
    _, changed = kinds.tiny({"blocks": [{"at": "1", "position": {"base": 5.0}}]}).declarations
    assert changed.position == (RoPE(base=5.0),)
    with pytest.raises(
        SpecError, match=r"^blocks\.0\.position: there are 2 items here: say which by its number, 0 to 1$"
    ):
        kinds.tiny(base, {"blocks": [{"at": "1", "position": {"base": 5.0}}]})
    with pytest.raises(SpecError, match=r"^blocks\.0\.position: 'learned' acts on the embeddings"):
        kinds.tiny(base, {"blocks": [{"at": "1", "position": {"0": {"length": 9}}}]})


def test_a_block_change_made_in_python_is_plain_data() -> None:
    made = BlockChange(at=1, norm=RMS(), attention={"window": None})
    architecture = kinds.tiny({"attention": {"window": 3}}).override({"blocks": [made.dump()]})
    assert architecture.declarations[1].attention.window is None
    assert Architecture.parse(tomllib.loads(to_toml(architecture))) == architecture
    direct = Architecture(blocks=[{"at": "1", "norm": RMS()}])
    assert direct.digest == Architecture(blocks=[{"at": "1", "norm": RMS().dump()}]).digest


# ------------------------------------------------------------------------------------------------------ changes


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 5}}, {"a": 1, "b": {"c": 5, "d": 3}}),
        ({"n": {"kind": "x", "p": 1}}, {"n": {"kind": "y", "q": 2}}, {"n": {"kind": "y", "q": 2}}),
        ({"n": {"kind": "x", "p": 1}}, {"n": {"kind": "x", "q": 2}}, {"n": {"kind": "x", "p": 1, "q": 2}}),
        ({"n": {"kind": "x", "p": 1}}, {"n": "x"}, {"n": "x"}),
        ({"n": "x"}, {"n": {"p": 1}}, {"n": {"kind": "x", "p": 1}}),
        ({"n": "x"}, {"n": {"kind": "y"}}, {"n": {"kind": "y"}}),
        ({"a": 1, "b": 2}, {"a": None, "b": "default"}, {}),
        ({}, {"a": None, "b": {"c": "default"}}, {"b": {}}),
        ({"l": [1, 2]}, {"l": [3]}, {"l": [3]}),
        ({"l": [{"a": 1}, {"a": 2}]}, {"l": {"1": {"b": 3}}}, {"l": [{"a": 1}, {"a": 2, "b": 3}]}),
        ({"l": [{"kind": "x", "a": 1}]}, {"l": {"b": 2}}, {"l": [{"kind": "x", "a": 1, "b": 2}]}),
        ({"l": [{"kind": "x", "a": 1}]}, {"l": {"kind": "y"}}, {"l": [{"kind": "y"}]}),
        ({"l": ["x"]}, {"l": {"b": 2}}, {"l": [{"kind": "x", "b": 2}]}),
        ({"l": ["x", "y"]}, {"l": {"kind": "z"}}, {"l": {"kind": "z"}}),
        ({"l": []}, {"l": {"b": 2}}, {"l": {"b": 2}}),
    ],
)
def test_merge(base: Any, change: Any, expected: Any) -> None:
    before = repr(base)
    assert merge(base, change) == expected
    assert repr(base) == before


def test_merge_names_the_item_that_is_not_there() -> None:
    with pytest.raises(SpecError, match=r"^a\.l\.2: there are only 1 items here$"):
        merge({"a": {"l": [1]}}, {"a": {"l": {"2": 5}}})
    with pytest.raises(SpecError, match=r"^a\.l: there are 2 items here: say which"):
        merge({"a": {"l": ["x", "y"]}}, {"a": {"l": {"b": 5}}})


@pytest.mark.parametrize(
    ("assignments", "change"),
    [
        (["attention.heads=8", "norm=rms"], {"attention": {"heads": 8}, "norm": "rms"}),
        (["norm=rms", "norm.eps=1e-3"], {"norm": {"kind": "rms", "eps": 1e-3}}),
        (["norm.eps=1e-3", "norm.bias=false"], {"norm": {"eps": 1e-3, "bias": False}}),
        (["norm.eps=1e-3", "norm=rms"], {"norm": "rms"}),
        (["a = 1", "a=2"], {"a": 2}),
        (['position=["rope", "alibi"]'], {"position": ["rope", "alibi"]}),
        (["norm={kind='rms', eps=1e-5}"], {"norm": {"kind": "rms", "eps": 1e-5}}),
        (["blocks.0.attention.window=4"], {"blocks": {"0": {"attention": {"window": 4}}}}),
        (["attention.window=default"], {"attention": {"window": "default"}}),
        (["name=a=b"], {"name": "a=b"}),
        (["at=::2"], {"at": "::2"}),
    ],
)
def test_assignments(assignments: list[str], change: dict[str, Any]) -> None:
    assert parse_assignments(assignments) == change


@pytest.mark.parametrize("assignment", ["heads", "=3", "a..b=3", "a b=3", ""])
def test_malformed_assignments_are_refused(assignment: str) -> None:
    with pytest.raises(SpecError, match=r"must look like key\.path=value"):
        parse_assignments([assignment])


def test_assignments_reach_into_lists() -> None:
    base = kinds.tiny({"position": ["learned", "rope"], "blocks": [{"at": "1", "dropout": 0.5}]})
    changed = base.override(
        parse_assignments(["position.1.base=5.0", "blocks.0.dropout=0.25", "blocks.0.norm.eps=0.5", "blocks.0.at=-1"])
    )
    assert changed.position == (Learned(), RoPE(base=5.0))
    assert changed.declarations[1].dropout == 0.25
    assert changed.declarations[1].norm == Layer(eps=0.5)
    assert (changed.declarations[0].dropout, changed.declarations[0].norm) == (0.0, Layer())


def test_nest_keeps_what_has_no_dots() -> None:
    assert nest({"a.b.c": 1, "a.b.d": 2, "a.e": 3, "f": {"g.h": 4}}) == {
        "a": {"b": {"c": 1, "d": 2}, "e": 3},
        "f": {"g.h": 4},
    }


@pytest.mark.parametrize("word", ["attention", "rmss", "", "zzzzzz"])
def test_did_you_mean_only_what_is_near(word: str) -> None:
    expected = {"rmss": " Did you mean 'rms'?"}
    assert did_you_mean(word, ["rms", "layer"]) == expected.get(word, "")


# ------------------------------------------------------------------------------------------------------ slots


def test_a_slot_names_its_default() -> None:
    with pytest.raises(TypeError, match="slot Nameless must name its default kind"):
        type("Nameless", (Slot,), {})
    assert "Nameless" not in slots()


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"kind 'rms' of Norm is taken by isoflop\.model\.norm\.RMS"):

        class Other(Norm, kind="rms"):
            pass

    assert Norm.kinds["rms"] is RMS


def test_a_field_of_one_kind_alone() -> None:
    """A field may ask for a kind instead of a slot."""

    class Holder(Spec):
        norm: RMS = RMS()
        mode: Literal["a", "b"] = "a"

    assert Holder.parse({"norm": {"eps": 0.5}}).norm == RMS(eps=0.5)
    with pytest.raises(SpecError, match=r"^norm"):
        Holder.parse({"norm": "layer"})


def test_a_kind_that_holds_its_own_slot_has_finite_paths() -> None:
    with kinds.registry_restored():

        class Twice(Activation, kind="twice"):
            """f(f(x))."""

            inner: Activation = "relu"  # type: ignore[assignment]

            def build(self) -> nn.Module:
                return nn.Sequential(self.inner.build(), self.inner.build())

        paths = field_paths(Architecture)
        assert "ffn.activation.inner" in paths
        assert "ffn.activation.inner.form" in paths
        with pytest.raises(SpecError, match=r"ffn\.activation\.iner: unknown field.*Did you mean 'inner'"):
            kinds.tiny({"ffn": {"activation": {"kind": "twice", "iner": "relu"}}})


# ------------------------------------------------------------------------------------------------------ files, schema


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.toml", tmp_path / "binary.toml"
    broken.write_text("width = = 3")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, words in [
        (tmp_path / "absent.toml", "no such file"),
        (tmp_path, "is a folder"),
        (broken, "is not valid TOML"),
        (binary, "is not text in UTF-8"),
    ]:
        with pytest.raises(SpecError, match=words) as caught:
            read_toml(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("recipe", recipes())
def test_the_json_schema_takes_recipes_as_written_and_as_resolved(recipe: str) -> None:
    validator = jsonschema.Draft202012Validator(Architecture.model_json_schema())
    written = tomllib.loads((Path(str(load.__globals__["_FOLDER"])) / f"{recipe}.toml").read_text())
    assert not list(validator.iter_errors(written))
    assert not list(validator.iter_errors(load(recipe).dump()))


@pytest.mark.parametrize("setting", kinds.settings(), ids=str)
def test_the_json_schema_takes_every_setting(setting: kinds.Setting) -> None:
    jsonschema.validate(setting.change, SCHEMA)


@pytest.mark.parametrize("change", [{"norm": "rmss"}, {"depth": 0}, {"attention": {"widow": 3}}, {"position": 5}])
def test_the_json_schema_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(change, SCHEMA)


SCHEMA = Architecture.model_json_schema()


def test_two_changes_as_one_drop_the_fields_of_a_kind_that_is_replaced() -> None:
    left = {"schedule": {"kind": "wsd", "cooldown": 0.1}, "norm": "rms"}
    assert merge_trees(left, {"schedule": {"kind": "cosine"}}) == {"schedule": {"kind": "cosine"}, "norm": "rms"}
    assert merge_trees(left, {"schedule": {"warmup": 3}})["schedule"] == {"kind": "wsd", "cooldown": 0.1, "warmup": 3}
    assert merge_trees(left, {"norm": {"eps": 1e-5}})["norm"] == {"kind": "rms", "eps": 1e-5}
