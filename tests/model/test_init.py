"""Initial weights: distributions by role, and draws that depend on a seed and a name alone."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

import formulas
import kinds
from isoflop.model import Architecture, build, parameter_roles, parts
from isoflop.model.init import generator_for, initialise, rule_for

INITS = {str(setting): kinds.tiny(setting.change).init for setting in kinds.settings() if setting.path[0] == "init"}
WIDE = {"width": 96, "depth": 3, "vocab": 300, "ffn": {"kind": "glu", "hidden": 200, "bias": True}, "tie_head": False}


def values_by_part(architecture: Architecture, seed: int = 0) -> dict[str, Tensor]:
    model = build(architecture, seed)
    parameters = dict(model.named_parameters())
    return {part.name: parameters[part.parameter][part.rows].detach() for part in parts(model)}


@pytest.mark.parametrize("name", INITS)
def test_each_role_has_the_deviation_of_its_formula(name: str) -> None:
    """The mean and the deviation of n draws lie within 3 sigma of the formula's: sigma / sqrt(n) for the mean, and for the
    deviation sigma sqrt((kurtosis - 1) / 4n), kurtosis 3 of a normal and 1.8 of a uniform distribution."""
    spec = INITS[name]
    architecture = kinds.tiny(WIDE, {"position": [{"kind": "learned", "length": 100}]}, {"init": spec.dump()})
    model = build(architecture, 1)
    parameters = dict(model.named_parameters())
    drawn: dict[str, list[Tensor]] = {}
    for part in parts(model):
        value = parameters[part.parameter][part.rows].detach()
        if part.role in ("gain", "bias"):
            assert (value == (part.role == "gain")).all()
            continue
        family, deviation = formulas.of(spec)(part.role, part.shape, architecture.width, architecture.depth)
        drawn.setdefault(part.role, []).append(value.flatten().double() / deviation)
        if family == "uniform":
            assert value.abs().max() <= deviation * math.sqrt(3) * (1 + 1e-6)
            assert value.abs().max() > deviation * math.sqrt(3) * 0.99
        else:
            assert value.abs().max() > deviation * 2.5
    assert drawn.keys() == {"embed", "position", "q", "k", "v", "o", "ffn_in", "ffn_gate", "ffn_out", "head"}
    for role, pieces in drawn.items():
        whole = torch.cat(pieces)
        count = whole.numel()
        assert abs(whole.mean()) < 3 / math.sqrt(count), role
        assert abs(whole.std() - 1) < 3 * math.sqrt(2 / (4 * count)), role


@pytest.mark.parametrize(("left", "right"), list(combinations(range(6), 2)))
def test_variants_share_what_they_have_in_common(left: int, right: int) -> None:
    variants = [
        {},
        {"norm": {"kind": "rms"}, "join": {"kind": "post"}, "tie_head": False},
        {"attention": {"kv_heads": 2, "bias": True, "window": 3}},
        {"ffn": {"kind": "glu", "hidden": 24}},
        {"position": [{"kind": "learned", "length": 9}], "vocab": 13, "scale_embedding": True, "dropout": 0.1},
        {"blocks": [{"at": "1", "attention": {"heads": 2}, "norm": {"kind": "rms"}}]},
    ]
    first, second = (values_by_part(kinds.tiny(variants[i])) for i in (left, right))
    common = [name for name in first.keys() & second.keys() if first[name].shape == second[name].shape]
    assert {"embed.weight", "blocks.0.attention.q.weight", "blocks.1.ffn.ffn_out.weight"} <= set(common)
    for name in common:
        assert torch.equal(first[name], second[name]), name


def test_depth_is_shared_where_the_rule_ignores_it() -> None:
    shallow, deep = values_by_part(kinds.tiny()), values_by_part(kinds.tiny({"depth": 5}))
    assert all(torch.equal(value, deep[name]) for name, value in shallow.items())


def test_another_seed_gives_other_values_everywhere() -> None:
    first, second = values_by_part(kinds.tiny(), 0), values_by_part(kinds.tiny(), 1)
    for name, value in first.items():
        constant = bool((value == value.flatten()[0]).all())
        assert torch.equal(value, second[name]) == constant, name


def test_draws_leave_the_global_generator_alone_and_ignore_it() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = values_by_part(kinds.tiny())
    assert torch.equal(torch.rand(3), expected)
    second = values_by_part(kinds.tiny())
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_generator_of_a_name_never_changes() -> None:
    """Fixed, since runs that are compared may stem from different versions."""
    assert generator_for(0, "embed.weight").initial_seed() == 2956821454833469499
    drawn = values_by_part(kinds.tiny())["embed.weight"].flatten()
    whole = torch.randn(drawn.numel(), generator=torch.Generator().manual_seed(2956821454833469499))
    assert torch.equal(drawn, whole * 0.02)


def test_16_bit_weights_are_the_rounded_ones() -> None:
    wide, narrow = build(kinds.tiny()), build(kinds.tiny(), dtype=torch.bfloat16)
    for name, value in narrow.state_dict().items():
        assert torch.equal(value, wide.state_dict()[name].bfloat16())


class _Undeclared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))


class _Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3))


def test_a_parameter_without_a_role_is_refused() -> None:
    message = r"_Undeclared owns 'inner\.scale' and declares no role for it: set self\.roles\['scale'\]"
    model = nn.ModuleDict({"inner": _Undeclared()})
    with pytest.raises(TypeError, match=message):
        parameter_roles(model)
    with pytest.raises(TypeError, match=message):
        initialise(model, kinds.tiny(), 0)


def test_a_buffer_is_refused_since_nothing_would_fill_it() -> None:
    with pytest.raises(TypeError, match=r"'inner\.table' is a buffer"):
        initialise(nn.ModuleDict({"inner": _Buffered()}), kinds.tiny(), 0)


def test_roles_say_what_decays_and_where() -> None:
    roles = parameter_roles(build(kinds.tiny({"attention": {"bias": True}, "tie_head": False})))
    assert roles["embed.weight"] == ("embed", True, None)
    assert roles["blocks.1.attention.qkv.weight"] == ("q+k+v", True, 1)
    assert roles["blocks.1.attention.qkv.bias"] == ("bias", False, 1)
    assert roles["blocks.0.ffn_join.norm_in.gain"] == ("gain", False, 0)
    assert roles["final_norm.bias"] == ("bias", False, None)
    assert roles["head.weight"] == ("head", True, None)


def test_a_tied_head_is_one_parameter() -> None:
    model = build(kinds.tiny())
    assert model.head_weight is model.embed.weight
    assert "head.weight" not in parameter_roles(model)


def test_rules_print_as_the_golden_files_show_them() -> None:
    part = next(part for part in parts(build(kinds.tiny())) if part.name == "blocks.0.attention.q.weight")
    shown = {name: str(rule_for(part, kinds.tiny({"init": spec.dump()}))) for name, spec in INITS.items()}
    assert shown["init=normal"] == "normal(std=0.02)"
    assert shown["init=xavier_uniform"] == f"uniform(bound={math.sqrt(6 / 48):.6g})"
