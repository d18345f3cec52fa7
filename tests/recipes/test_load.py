"""Architecture files: recipes, `extends`, overrides, `[training]`, plugins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import kinds
from isoflop.model import Architecture
from isoflop.model.norm import RMS, Layer
from isoflop.model.position import Learned, RoPE, Sinusoidal
from isoflop.recipes import load, load_file, recipes
from isoflop.spec import SpecError, to_toml


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a TOML file and returns its path."""

    def write_file(name: str, **table: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(tomli_w.dumps(table))
        return path

    return write_file


def test_recipes() -> None:
    assert set(recipes()) >= {"original_2017", "modern", "gpt2", "llama"}
    for name in recipes():
        assert isinstance(load(name), Architecture)


def test_recipes_are_what_their_papers_say() -> None:
    original, modern, gpt2, llama = (load(name) for name in ("original_2017", "modern", "gpt2", "llama"))
    assert (original.width, original.depth, original.attention.heads, original.ffn.hidden) == (512, 6, 8, 2048)
    assert (original.join.kind, original.position, original.ffn.activation.kind) == ("post", (Sinusoidal(),), "relu")
    assert (original.dropout, original.scale_embedding, original.tie_head) == (0.1, True, True)
    assert (gpt2.vocab, gpt2.width, gpt2.depth, gpt2.position) == (50257, 768, 12, (Learned(length=1024),))
    assert (gpt2.ffn.activation.form, gpt2.norm, gpt2.init.kind) == ("tanh", Layer(eps=1e-5), "gpt2")
    assert (llama.width, llama.depth, llama.attention.heads, llama.ffn.hidden) == (4096, 32, 32, 11008)
    assert (llama.norm, llama.tie_head) == (RMS(eps=1e-5, cast="before_gain"), False)
    assert (modern.join.kind, modern.norm, modern.ffn.kind, modern.ffn.activation.kind) == ("pre", RMS(), "glu", "silu")
    assert modern.position == (RoPE(),)


def test_a_file_extends_a_file_that_extends_a_recipe(write: Any) -> None:
    write("bases/small.toml", extends="modern", width=64, attention={"heads": 4, "window": 16})
    top = write("top.toml", extends="bases/small.toml", depth=2, attention={"window": "default", "kv_heads": 2})
    loaded, modern = load(top), load("modern")
    assert (loaded.width, loaded.depth) == (64, 2)
    assert (loaded.attention.heads, loaded.attention.kv_heads, loaded.attention.window) == (4, 2, None)
    assert loaded.ffn == modern.ffn
    assert loaded.norm == modern.norm


def test_relative_paths_start_at_the_file_that_names_them(
    write: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("a/base.toml", width=32)
    write("base.toml", width=64)
    write("a/b/middle.toml", extends="../base.toml")
    top = write("c/top.toml", extends="../a/b/middle.toml")
    monkeypatch.chdir(tmp_path)
    assert load(top).width == 32
    assert load("c/top.toml").width == 32
    assert load("base.toml").width == 64


def test_circles_are_named(write: Any) -> None:
    one = write("one.toml", extends="two.toml")
    write("two.toml", extends="./one.toml")
    with pytest.raises(SpecError, match=r"^extends: goes in a circle: one\.toml -> two\.toml -> one\.toml$"):
        load(one)
    alone = write("alone.toml", extends="alone.toml")
    with pytest.raises(SpecError, match="goes in a circle"):
        load(alone)


def test_another_kind_drops_the_fields_of_the_old_one(write: Any) -> None:
    file = write(
        "f.toml", extends="llama", norm={"kind": "layer"}, ffn={"kind": "plain"}, position={"kind": "sinusoidal"}
    )
    loaded = load(file)
    assert loaded.norm == Layer()
    assert loaded.ffn.kind == "plain"
    assert loaded.ffn.hidden is None
    assert loaded.position == (Sinusoidal(),)


def test_fields_of_the_kind_that_is_there_change_alone(write: Any) -> None:
    file = write("f.toml", extends="llama", norm={"eps": 1e-3}, position={"base": 5e5}, ffn={"activation": "gelu"})
    loaded = load(file)
    assert loaded.norm == RMS(eps=1e-3, cast="before_gain")
    assert loaded.position == (RoPE(base=5e5),)
    assert (loaded.ffn.hidden, loaded.ffn.activation.kind) == (11008, "gelu")


OVERRIDES: list[tuple[str, dict[str, Any], str, Any]] = [
    ("modern", {"width": 64}, "width", 64),
    ("modern", {"attention.kv_heads": 2}, "attention.kv_heads", 2),
    ("modern", {"attention": {"window": 5}}, "attention.window", 5),
    ("modern", {"norm": "layer"}, "norm", Layer()),
    ("modern", {"norm": {"kind": "layer", "eps": 0.5}}, "norm", Layer(eps=0.5)),
    ("modern", {"norm": Layer(bias=False)}, "norm", Layer(bias=False)),
    ("modern", {"norm": "layer", "norm.eps": 0.5}, "norm", Layer(eps=0.5)),
    ("llama", {"norm.eps": 0.5}, "norm", RMS(eps=0.5, cast="before_gain")),
    ("llama", {"ffn.hidden": None}, "ffn.hidden", None),
    ("llama", {"ffn.hidden": "default"}, "ffn.hidden", None),
    ("llama", {"attention.heads": None}, "attention.heads", 4),
    ("llama", {"norm": None}, "norm", Layer()),
    ("gpt2", {"position.length": 64}, "position", (Learned(length=64),)),
    ("gpt2", {"position.0.length": 64}, "position", (Learned(length=64),)),
    ("original_2017", {"position.base": 500.0}, "position", (Sinusoidal(base=500.0),)),
    ("original_2017", {"position": "rope"}, "position", (RoPE(),)),
    ("original_2017", {"position": ["sinusoidal", "rope"]}, "position", (Sinusoidal(), RoPE())),
    ("original_2017", {"position": {"kind": "rope", "base": 500.0}}, "position", (RoPE(base=500.0),)),
]


@pytest.mark.parametrize(("recipe", "overrides", "path", "expected"), OVERRIDES)
def test_overrides(recipe: str, overrides: dict[str, Any], path: str, expected: Any) -> None:
    before, after = load(recipe), load(recipe, **overrides)
    value: Any = after
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected
    top = path.split(".")[0]
    assert {**after.dump(), top: None} == {**before.dump(), top: None}


def test_an_override_that_cannot_be_is_refused_by_path() -> None:
    with pytest.raises(SpecError, match=r"^attention\.heds: unknown field.*Did you mean 'heads'"):
        load("modern", **{"attention.heds": 4})
    with pytest.raises(SpecError, match=r"^norm\.epz"):
        load("modern", norm={"epz": 4})


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"'modrn' is neither a recipe \(bert, .*\) nor a file\. Did you mean 'modern'\?"
    ):
        load("modrn")
    with pytest.raises(SpecError, match=r"no such file: .*absent\.toml"):
        load(tmp_path / "absent.toml")
    with pytest.raises(SpecError, match="is a folder"):
        load(tmp_path)


def test_a_fault_in_the_base_is_told(write: Any) -> None:
    write("base.toml", widht=3)
    with pytest.raises(SpecError, match=r"^widht: unknown field.*Did you mean 'width'"):
        load(write("top.toml", extends="base.toml"))
    with pytest.raises(SpecError, match=r"no such file: .*gone\.toml"):
        load(write("top.toml", extends="gone.toml"))


def test_training_is_kept_apart_and_inherited(write: Any) -> None:
    write("base.toml", extends="modern", training={"steps": 5, "optimizer": {"rate": 0.1, "decay": 0.2}})
    top = write("top.toml", extends="base.toml", width=64, training={"steps": 9, "optimizer": {"rate": 0.3}})
    declared = load_file(top, {"depth": 2})
    assert (declared.architecture.width, declared.architecture.depth) == (64, 2)
    assert declared.training == {"steps": 9, "optimizer": {"rate": 0.3, "decay": 0.2}}
    assert load_file("modern").training == {}
    with pytest.raises(SpecError, match=r"^training: must be a table, came 5$"):
        load(write("bad.toml", training=5))


def test_blocks_of_a_file_replace_those_of_its_base(write: Any) -> None:
    change = {"at": "::2", "attention": {"window": 8}}
    write("base.toml", extends="modern", blocks=[change, {"at": "0", "norm": "layer"}])
    assert len(load(write("same.toml", extends="base.toml")).blocks) == 2
    top = load(write("top.toml", extends="base.toml", blocks=[{"at": "1", "norm": "layer"}]))
    assert [block.norm.kind for block in top.declarations][:3] == ["rms", "layer", "rms"]
    assert {block.attention.window for block in top.declarations} == {None}


@pytest.mark.parametrize("recipe", recipes())
def test_a_saved_recipe_loads_as_itself(recipe: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.toml"
    file.write_text(to_toml(load(recipe)))
    assert load(file) == load(recipe)
    assert load(file).digest == load(recipe).digest


# ------------------------------------------------------------------------------------------------------ plugins

KIND = "from isoflop.model.norm import RMS\n\nclass Own{0}(RMS, kind='own_{0}'):\n    '''Own.'''\n"


@pytest.fixture
def registry() -> Any:
    """Forgets kinds and modules that a test loads."""
    before = set(sys.modules)
    with kinds.registry_restored():
        yield
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]


@pytest.mark.usefixtures("registry")
def test_plugins_stand_beside_the_file_and_add_up(write: Any, tmp_path: Path) -> None:
    (tmp_path / "plugin_one.py").write_text(KIND.format("one"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/plugin_two.py").write_text(KIND.format("two"))
    write("base.toml", plugins=["plugin_one"], norm={"kind": "own_one", "eps": 0.5})
    top = write("deep/top.toml", extends="../base.toml", plugins=["plugin_two"], attention={"qk_norm": "own_two"})
    path = list(sys.path)
    loaded = load(top)
    assert sys.path == path
    assert (loaded.norm.kind, loaded.attention.qk_norm.kind) == ("own_one", "own_two")
    assert loaded.plugins == ("plugin_one", "plugin_two")
    assert loaded.override({"norm": {"eps": 0.25}}).norm == type(loaded.norm)(eps=0.25)


@pytest.mark.usefixtures("registry")
def test_a_plugin_that_is_not_there_is_named(write: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^plugins: module 'plugin_gone' was not found beside the file \(") as caught:
        load(write("f.toml", plugins=["plugin_gone"]))
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(SpecError, match=r"^plugins"):
        load(write("f.toml", plugins="plugin_gone"))


@pytest.mark.usefixtures("registry")
def test_a_fault_inside_a_plugin_is_its_own(write: Any, tmp_path: Path) -> None:
    (tmp_path / "plugin_faulty.py").write_text("import a_module_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        load(write("f.toml", plugins=["plugin_faulty"]))


def test_a_kind_without_its_plugin_is_unknown(write: Any) -> None:
    with pytest.raises(SpecError, match=r"^norm: 'own_one' is no kind of Norm"):
        load(write("f.toml", norm="own_one"))


@pytest.mark.usefixtures("registry")
def test_plugins_may_be_named_in_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changed_kinds.py").write_text(
        "from isoflop.model.norm import RMS\n\n\nclass Named(RMS, kind='test_named_in_a_change'):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    architecture = load("modern", plugins=["changed_kinds"], norm="test_named_in_a_change")
    assert architecture.norm.kind == "test_named_in_a_change"
    assert architecture.plugins == ("changed_kinds",)
