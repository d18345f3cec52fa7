"""Arms at the budget of the base, checked against models that are built and matmuls that are added up by hand."""

from typing import Any

import pytest

from isoflop.model import Architecture, build
from isoflop.plan import price
from isoflop.spec import SpecError
from isoflop.study.match import TOLERANCE, Infeasible, Match, Matched, solve

LENGTH = 32
BASE = Architecture(
    vocab=64, width=32, depth=2, position="rope", norm="layer", join="post", attention={"heads": 4}, ffn={"hidden": 128}
)


def built(architecture: Architecture) -> int:
    """Parameters of the real model, a tied matrix once."""
    return sum(parameter.numel() for parameter in build(architecture).parameters())


def matched(change: dict[str, Any], base: Architecture = BASE, **match: Any) -> Matched:
    found = solve(base, base.override(change), "arm", Match(**match), LENGTH)
    assert found is not None
    return found


FFNS = [{"kind": "glu", "activation": a} for a in ("silu", "gelu", "relu", "sigmoid", "identity")]
CHANGES: list[dict[str, Any]] = [
    *({"ffn": ffn} for ffn in FFNS),
    {"ffn": {"kind": "glu", "bias": True}},
    {"ffn": {"kind": "glu", "multiple": 8}},
    {"ffn": {"bias": True}},
    {"ffn": {"hidden": 512}},
    {"norm": "rms", "ffn": {"bias": True}},
    {"attention": {"kv_heads": 2}},
    {"attention": {"kv_heads": 1}},
    {"attention": {"head_width": 16}},
    {"attention": {"bias": True, "qk_norm": "rms"}},
    {"position": {"kind": "learned", "length": 64}},
    {"tie_head": False},
    {"ffn": {"kind": "glu"}, "attention": {"kv_heads": 1}, "norm": "rms", "join": "pre"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_parameters_are_those_of_a_built_model(change: dict[str, Any]) -> None:
    found = matched(change)
    assert found.base == built(BASE)
    assert found.arm == built(found.architecture)
    assert found.residual == found.arm / found.base - 1
    assert abs(found.residual) <= 0.005
    if found.field is None:
        assert found.architecture == BASE.override(change)
        return
    assert found.field == "ffn.hidden"
    assert found.architecture.ffn.hidden == found.value  # type: ignore[attr-defined]
    # Nothing else was touched, save a rounding that an explicit size takes the place of.
    rest = BASE.override(change).override({"ffn": {"multiple": "default"}} if "multiple" in str(change) else {})
    assert found.architecture == rest.override({"ffn": {"hidden": found.value}})
    # One step either way is no nearer.
    for value in (found.value - 1, found.value + 1):  # type: ignore[operator]
        other = built(found.architecture.override({"ffn": {"hidden": value}}))
        assert abs(found.arm - found.base) <= abs(other - found.base)


def test_the_two_thirds_rule_comes_out() -> None:
    """A gated feed-forward has three matrices for two: 2 * 4d * d = 3 * h * d at h = 8/3 d."""
    for width in (32, 96, 240):
        found = matched(
            {"ffn": {"kind": "glu", "hidden": 1}}, BASE.override({"width": width, "ffn": {"hidden": 4 * width}})
        )
        assert found.field == "ffn.hidden"
        assert abs(found.value - 8 * width / 3) < 1  # type: ignore[operator]
        assert (found.residual == 0.0) == (width % 3 == 0)


def test_what_is_within_the_tolerance_is_left_alone() -> None:
    # RMSNorm lacks the four bias vectors of LayerNorm: 4 * 32 of some 26,000 parameters.
    found = matched({"norm": "rms"})
    assert (found.field, found.value) == (None, None)
    assert found.arm == found.base - 4 * 32
    assert abs(found.residual) <= TOLERANCE["params"]
    assert found.architecture == BASE.override({"norm": "rms"})
    assert matched({"norm": "rms"}, tolerance=1e-3).field == "ffn.hidden"


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_width_keeps_to_what_heads_divide(heads: int) -> None:
    base = BASE.override({"width": 128, "attention": {"heads": heads}, "ffn": {"hidden": 512}})
    found = matched({"ffn": {"hidden": 300}}, base, knob="width", tolerance=0.05)
    assert found.field == "width"
    assert found.architecture.width == found.value
    assert found.value % heads == 0  # type: ignore[operator]
    assert found.arm == built(found.architecture)
    # The nearest of all widths that can be declared.
    residuals = {}
    for width in range(100, 200):
        try:
            residuals[width] = abs(built(base.override({"width": width, "ffn": {"hidden": 300}})) - found.base)
        except SpecError:
            continue
    assert residuals[found.value] == min(residuals.values())  # type: ignore[index]


def test_depth() -> None:
    base = BASE.override({"depth": 12, "ffn": {"hidden": 128}})
    found = matched({"ffn": {"hidden": 32}}, base, knob="depth", tolerance=0.05)
    assert (found.field, found.architecture.depth) == ("depth", found.value)
    block = {
        hidden: built(BASE.override({"depth": 2, "ffn": {"hidden": hidden}}))
        - built(BASE.override({"depth": 1, "ffn": {"hidden": hidden}}))
        for hidden in (128, 32)
    }
    assert found.value == round(12 * block[128] / block[32])


def test_another_knob_for_one_arm() -> None:
    base = BASE.override({"depth": 12})
    match = Match(knobs={"thin": "depth"}, tolerance=0.05)
    thin = solve(base, base.override({"ffn": {"hidden": 32}}), "thin", match, LENGTH)
    wide = solve(base, base.override({"attention": {"head_width": 16}}), "wide", match, LENGTH)
    assert thin is not None
    assert wide is not None
    assert (thin.field, wide.field) == ("depth", "ffn.hidden")


@pytest.mark.parametrize(
    "change", [{"ffn": {"kind": "glu"}}, {"attention": {"kv_heads": 1}}, {"tie_head": False}], ids=str
)
def test_flops(change: dict[str, Any]) -> None:
    base = BASE.override({"width": 64, "ffn": {"hidden": 256}})
    found = matched(change, base, budget="flops", tolerance=0.005)
    assert (found.base, found.arm) == tuple(training_flops(a) for a in (base, found.architecture))
    assert abs(found.residual) <= 0.005
    assert matched(change, base, budget="flops").residual == pytest.approx(0, abs=0.02)


def training_flops(architecture: Architecture) -> float:
    """Per token: 6 for each weight of a matmul, and 6 for each pair, head and component of q·k and p·v."""
    width, depth, attention = architecture.width, architecture.depth, architecture.attention.dump()
    heads = attention["heads"]
    kv_share = attention.get("kv_heads", heads) / heads
    ffn = architecture.ffn.dump()
    hidden = ffn.get("hidden", -(-8 * width // 3))
    matrices = width * width * (2 + 2 * kv_share) + (3 if ffn["kind"] == "glu" else 2) * width * hidden
    pairs_per_token = (LENGTH + 1) / 2
    return 6 * (depth * (matrices + 2 * pairs_per_token * width) + architecture.vocab * width)


def test_flops_by_hand_are_those_of_the_price() -> None:
    assert price(BASE, LENGTH).training_flops_per_token == training_flops(BASE)


@pytest.mark.parametrize("budget", ["tokens", "none"])
def test_budgets_that_turn_nothing(budget: str) -> None:
    assert solve(BASE, BASE.override({"ffn": {"hidden": 512}}), "arm", Match(budget=budget), LENGTH) is None  # type: ignore[arg-type]


def test_infeasible_names_knob_value_and_residual() -> None:
    with pytest.raises(Infeasible) as caught:
        matched({"ffn": {"hidden": 512}}, knob="depth")
    one = built(BASE.override({"ffn": {"hidden": 512}, "depth": 1}))
    assert str(caught.value) == (
        f"arm 'arm': no value of depth meets the params of the base within 0.50%; nearest is depth=1, {one:,} against "
        f"{built(BASE):,} ({one / built(BASE) - 1:+.2%}). Choose another knob, or raise match.tolerance"
    )
    with pytest.raises(Infeasible, match=r"nearest is ffn\.hidden=1, "):
        matched({"depth": 8})


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ("norm", r"the knob 'norm' cannot be turned here: norm: must be the name of a Norm kind or a table, came 1"),
        ("join.hidden", r"the knob 'join\.hidden' cannot be turned here: join\.hidden: unknown field"),
        ("ffn.hiden", r"the knob 'ffn\.hiden' cannot be turned here: .*Did you mean 'hidden'\?"),
    ],
)
def test_a_knob_that_this_arm_lacks(knob: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        matched({"ffn": {"hidden": 512}}, knob=knob)
