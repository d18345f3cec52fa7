"""Every kind and every value of its fields, in a tiny architecture and in one block of it; see `properties`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import kinds
import properties
from isoflop.model import Architecture, Transformer, parameter_roles, parts
from isoflop.recipes import load
from isoflop.spec import Slot, SpecError, parse_assignments, slots


def _distinct() -> dict[str, Architecture]:
    """Settings that give equal architectures are one."""
    names: dict[Architecture, str] = {}
    for setting in kinds.settings():
        names.setdefault(kinds.tiny(setting.change), str(setting))
    return {name: architecture for architecture, name in names.items()}


WHOLE = _distinct()
IN_BLOCK = {kinds.block_name(change): change for change in kinds.block_settings()}
IN_ENCODER = {kinds.encoder_name(change): change for change in kinds.encoder_settings()}


@pytest.mark.parametrize("name", WHOLE)
def test_setting(name: str) -> None:
    properties.check_everything(WHOLE[name])


@pytest.mark.parametrize("name", IN_BLOCK)
def test_setting_in_one_block(name: str) -> None:
    properties.check_combination(kinds.tiny(IN_BLOCK[name]))


@pytest.mark.parametrize("name", IN_ENCODER)
def test_setting_in_an_encoder(name: str) -> None:
    properties.check_combination(kinds.tiny(IN_ENCODER[name]))


def test_every_kind_of_a_model_is_met() -> None:
    met = {(type_name, kind) for type_name, kind in _met()}
    assert met == {(name, kind) for name, slot in kinds.model_slots().items() for kind in slot.kinds}


def _met() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    def visit(value: Any) -> None:
        if isinstance(value, Slot):
            found.add((type(value).slot().__name__, value.kind))
        for name in getattr(type(value), "model_fields", {}):
            visit(getattr(value, name))
        for item in value if isinstance(value, tuple) else ():
            visit(item)

    for architecture in WHOLE.values():
        visit(architecture)
    return found


@pytest.mark.parametrize("slot", slots().values(), ids=list(slots()))
def test_kinds_of_any_slot_survive_a_dump(slot: type[Slot]) -> None:
    """Slots outside the model too."""
    assert slot.default_kind in slot.kinds
    for name, kind in slot.kinds.items():
        value = slot.parse({"kind": name, **kinds.required(kind)})
        assert type(value) is kind
        assert slot.parse(value.dump()) == value
        assert slot.parse(value.dump()).digest == value.digest
        assert kind.__doc__, f"{kind.__name__} has no docstring"


# ------------------------------------------------------------------------------------------------------ command line


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {path: value}
    return {key: leaf for name, item in items for key, leaf in _flat(item, f"{path}.{name}".lstrip(".")).items()}


def _assignment(path: str, value: Any) -> str:
    text = tomli_w.dumps({"value": value}).removeprefix("value = ").strip() if not isinstance(value, dict) else None
    return f"{path}={value['kind'] if text is None else text}"


@pytest.mark.parametrize("setting", kinds.settings(), ids=str)
def test_an_assignment_sets_one_field_and_default_puts_it_back(setting: kinds.Setting) -> None:
    before = kinds.tiny(setting.owner)
    path = ".".join(setting.path)
    after = before.override(parse_assignments([_assignment(path, setting.value)]))
    whole_kind = isinstance(setting.value, dict)
    assert after == kinds.tiny(setting.change) or whole_kind  # a bare name is the kind with its own defaults
    old, new = _flat(before.dump()), _flat(after.dump())
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    inside = _path_in(after, setting.path)
    assert all(key == inside or (whole_kind and key.startswith(f"{inside}.")) for key in changed), changed
    if whole_kind:
        assert _value(after, setting.path).kind == setting.value["kind"]
        return
    assert changed == {inside}
    assert _value(after, setting.path) == setting.value
    beside = ["attention=default"] if path == "width" else []  # six heads do not divide the default width
    reset = after.override(parse_assignments([f"{path}=default", *beside]))
    default = type(_value(before, setting.path[:-1])).model_fields[setting.path[-1]].default
    assert _value(reset, setting.path) == (default[0] if isinstance(default, tuple) else default)


def _path_in(architecture: Architecture, path: tuple[str, ...]) -> str:
    """The path in a dump, where an item of a list has its number."""
    value: Any = architecture
    words: list[str] = []
    for name in path:
        value = getattr(value, name)
        words.append(name)
        if isinstance(value, tuple):
            value = value[0]
            words.append("0")
    return ".".join(words)


def _value(architecture: Architecture, path: tuple[str, ...]) -> Any:
    value: Any = architecture
    for name in path:
        value = getattr(value, name)
        value = value[0] if isinstance(value, tuple) else value
    return value


# ------------------------------------------------------------------------------------------------------ a user's kinds

PLUGIN = '''
"""Kinds of a user's own: a norm with a scalar, and a learned bias on the scores in a stage of attention."""

from typing import Literal

import torch
from torch import nn

from isoflop.model.relation import Relation
from isoflop.model.slots import Norm, Position
from isoflop.model.term import Term


class PowerNorm(Norm, kind="power"):
    """x / (mean(|x|^p) + eps)^(1/p), times one learned number."""

    power: float
    side: Literal["both", "positive"] = "both"
    eps: float = 0.5

    def build(self, width):
        return PowerModule(self.power, self.side == "positive", self.eps)


class PowerModule(nn.Module):
    def __init__(self, power, positive, eps):
        super().__init__()
        self.power, self.positive, self.eps = power, positive, eps
        self.gain = nn.Parameter(torch.empty(()))
        self.roles = {"gain": "gain"}

    def forward(self, x):
        size = (x.relu() if self.positive else x.abs()).pow(self.power).mean(-1, keepdim=True)
        return self.gain * x / (size + self.eps).pow(1 / self.power)


class Offsets(Position, kind="offsets"):
    """A learned bias for each offset up to `reach`, and one for all beyond."""

    stages = frozenset({"add"})
    reach: int = 4

    def term(self, setting, heads, head_width):
        return OffsetBias(heads, self.reach)


class OffsetBias(Term):
    stages = frozenset({"add"})

    def __init__(self, heads, reach):
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.empty(heads, reach))
        self.roles = {"table": "offset"}

    def add(self, meeting):
        return Relation(look_up, shared=(self.table.float(),))


def look_up(rows, columns, shared, view):
    (table,) = shared
    offset = view.offsets[:, 0].abs().clamp(max=table.shape[1] - 1)
    return table[:, offset].transpose(0, 1)
'''


@pytest.fixture
def plugin_file(tmp_path: Path) -> Any:
    """An architecture file that names a module with kinds beside it."""
    (tmp_path / "kinds_of_a_user.py").write_text(PLUGIN)
    file = tmp_path / "architecture.toml"
    file.write_text(tomli_w.dumps({**kinds.TINY, "plugins": ["kinds_of_a_user"], "position": "offsets"}))
    kinds.NUMBERS.update(power=3.0, reach=3)
    kinds.settings.cache_clear()
    with kinds.registry_restored():
        yield file
    sys.modules.pop("kinds_of_a_user", None)
    del kinds.NUMBERS["power"], kinds.NUMBERS["reach"]
    kinds.settings.cache_clear()


def test_a_kind_from_a_file_enters_all_of_this_by_being_registered(plugin_file: Path) -> None:
    loaded = load(plugin_file)
    assert loaded.position[0].kind == "offsets"
    own = [setting for setting in kinds.settings() if any(word in str(setting) for word in ("power", "offsets"))]
    assert {str(setting) for setting in own} >= {
        "norm=power",
        "norm.side=positive(power)",
        "position=offsets",
        "position.reach=3(offsets)",
        "attention.qk_norm=power",
    }
    for setting in own:
        properties.check_everything(kinds.tiny(setting.change))
    both = load(plugin_file, norm={"kind": "power", "power": 2.5}, position=["offsets", "rope"], tie_head=False)
    properties.check_everything(both)
    model = Transformer(both)
    assert parameter_roles(model)["blocks.0.attention.terms.0.table"].role == "offset"
    assert {part.shape for part in parts(model) if part.name == "final_norm.gain"} == {()}


def test_a_kind_that_the_table_cannot_fill_says_what_to_add(plugin_file: Path) -> None:
    load(plugin_file)
    saved = kinds.NUMBERS.pop("power")
    with pytest.raises(AssertionError, match=r"PowerNorm\.power: add a value .* to NUMBERS in tests/kinds\.py"):
        kinds.settings()
    kinds.NUMBERS["power"] = saved


def test_a_required_field_left_out_names_its_path(plugin_file: Path) -> None:
    with pytest.raises(SpecError, match=r"^norm\.power: must be given$"):
        load(plugin_file, norm="power")
