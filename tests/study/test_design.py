"""What a study file may say, and how it is refused."""

from pathlib import Path
from typing import Any

import pytest

from isoflop.spec import SpecError, parse_assignments
from isoflop.study.design import Design, load_study
from isoflop.train import Training

TOP = """
name = "small"
base = "modern"
seeds = 2
"""
REST = """
[change]
width = 16
depth = 1
attention.heads = 2

[training]
steps = 4
rate = 1e-3
length = 16
"""


def load(folder: Path, arms: str = "", *change: str, top: str = "", rest: str = REST) -> Design:
    """The study of a file: `top` are more lines before the tables, `arms` more tables."""
    (folder / "study.toml").write_text(TOP + top + rest + arms)
    return load_study(folder / "study.toml", parse_assignments(change))


REFUSED: list[tuple[str, str, str]] = [
    # lines at the top, tables at the end, the message
    ("nmae = 'x'", "", r"^nmae: unknown field; .*Did you mean 'name'\?"),
    ("margin = '1%'", "", r"^margin: must be a valid number, came '1%'"),
    ("margin = 0.0", "", r"^margin: must be greater than 0, came 0\.0"),
    ("arms = 3", "", r"^arms: must be a valid dictionary, came 3"),
    ("match = 'parms'", "", r"^match\.budget: must be 'params'.*Did you mean 'params'\?"),
    ("match = 3", "", r"^match: "),
    ("leave_one_out = 'a'", "[arms.a]\nnorm='rms'", r"^leave_one_out: must name an arm with at least two changes"),
    ("leave_one_out = 'b'", "[arms.a]\nnorm='rms'", r"^leave_one_out: .*came 'b'"),
    (
        "leave_one_out = 'a'",
        "[arms.a]\nnorm='rms'\ninit='normal'\n[arms.a-without-norm]",
        r"^arms\.a-without-norm: is the name of an arm that leave_one_out adds",
    ),
    ("", "[match]\nknob='ffn.hiden'", r"^match\.knob: 'ffn\.hiden' is no field .*Did you mean 'ffn\.hidden'\?"),
    ("", "[match]\nknobs={a='widht'}\n[arms.a]", r"^match\.knobs\.a: 'widht' .*Did you mean 'width'\?"),
    ("", "[match]\nknobs={b='width'}\n[arms.a]", r"^match\.knobs\.b: names no arm; there are a$"),
    ("", "[match]\ntolerance=1.5", r"^match\.tolerance: must be less than 1, came 1\.5"),
    ("", "[arms.base]", r"^arms\.base: 'base' is the base itself"),
    ("", "[arms.Base]", r"^arms\.Base: 'base' is the base itself"),
    ("", "[arms.a]\n[arms.A]", r"^arms\.A: differs from 'a' only in case"),
    ("", "[arms.a]\nnrom='rms'", r"^arms\.a\.nrom: unknown field; .*Did you mean 'norm'\?"),
    ("", "[arms.a]\nnorm='rsm'", r"^arms\.a\.norm: 'rsm' is no kind of Norm.*Did you mean 'rms'\?"),
    ("", "[arms.a]\nwidth='16'", r"^arms\.a\.width: must be a valid integer, came '16'"),
    ("", "[arms.a]\nattention.heads=3", r"^arms\.a\.attention\.heads: must divide width 16, came 3"),
    ("", "[arms.a]\nposition=['none','rope']", r"^arms\.a\.position: 'none' stands beside rope"),
    ("", "[arms.a]\nposition={kind='learned',length=8}", r"^arms\.a\.training\.length: length 16 is beyond the 8"),
    ("", "[arms]\na='rms'", r"^arms\.a: must be a valid dictionary, came 'rms'"),
    ("", "[arms.a]\ntraining=3", r"^arms\.a\.training: must be a table of Training fields, came 3"),
    ("", "[arms.a]\ntraining.raet=3.0", r"^arms\.a\.training\.raet: unknown field; .*Did you mean 'rate'\?"),
    *(
        ("", f"[arms.a.training]\n{line}", rf"^arms\.a\.training\.{line.partition('=')[0]}: must be that of the base")
        for line in ("steps=5", "batch=8", "length=8", "validation_windows=3", "evaluate_lengths=[8]", "data={seed=1}")
    ),
]


@pytest.mark.parametrize(("top", "arms", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_cannot_be_used_is_named_by_its_path(tmp_path: Path, top: str, arms: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(tmp_path, arms, top=top)


def test_an_arm_whose_positions_end_before_a_declared_length_is_named(tmp_path: Path) -> None:
    arms = "[arms.short]\nposition={kind='learned',length=16}\n[arms.long]\nposition={kind='learned',length=64}"
    load(tmp_path, arms)
    with pytest.raises(
        SpecError, match=r"^arms\.short\.training\.evaluate_lengths: length 64 is beyond the 16 positions"
    ):
        load(tmp_path, arms, "training.evaluate_lengths=[16,64]")


def test_a_set_of_pairs_that_an_arm_has_no_positions_for_is_named(tmp_path: Path) -> None:
    """The data tell how long a set is, so this is refused when they are read, before any run."""
    source = "training.data.source={kind='copy',symbols=4,longest=3,extrapolate=[9],items=20,validation_items=5}"
    design = load(tmp_path, "[arms.short]\nposition={kind='learned',length=18}", source, "change.vocab=6")
    with pytest.raises(
        SpecError, match=r"^arms\.short: 'size 9' of training\.data\.source: length 19 is beyond the 18"
    ):
        design.check_data()


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("[0, 1, 0]", r"^seeds: holds 0 twice; a seed is one pair$"),
        ("[]", r"^seeds: must hold at least one whole number of at least 0, came \[\]"),
        ("0", r"^seeds: must hold at least one"),
        ("-3", r"^seeds: must hold at least one"),
        ("[-1]", r"^seeds: must hold at least one whole number of at least 0, came \[-1\]"),
        ("1.5", r"^seeds: must be a .*, came 1\.5"),
        ("true", r"^seeds: must be a .*, came True"),
        ("'3'", r"^seeds: must be a .*, came '3'"),
        ("[0.5]", r"^seeds\.0: must be a valid integer, came 0\.5"),
    ],
)
def test_seeds(tmp_path: Path, seeds: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(tmp_path, "", f"seeds={seeds}")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", ".hidden", "-x", "a b", "a\\b", "ü", "x\n"])
def test_names_are_folders_inside_the_study(tmp_path: Path, name: str) -> None:
    for change in ({"name": name}, {"arms": {name: {}}}):
        (tmp_path / "study.toml").write_text(TOP + REST)
        with pytest.raises(SpecError, match="must start with a letter or digit and hold only"):
            load_study(tmp_path / "study.toml", change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (REST, r"^base: must name a recipe or an architecture file, came None"),
        ("base = 3\n" + REST, r"^base: must name a recipe or an architecture file, came 3"),
        ("base = 'modrn'\n" + REST, r"^base: 'modrn' is neither a recipe .*Did you mean 'modern'\?"),
        ("base = 'none.toml'\n" + REST, r"^base: no such file: .*none\.toml"),
        ("base = 'bad.toml'\n" + REST, r"^base\.widht: unknown field; .*Did you mean 'width'\?"),
        ("base = 'modern'\nchange = 3\ntraining = {steps=1,rate=1.0}", r"^change: must be a valid dictionary, came 3"),
        ("base = 'modern'\ntraining = 3", r"^training: must be a valid dictionary .*, came 3"),
        ("base = 'modern'", r"^training\.steps: must be given\ntraining\.rate: must be given$"),
        ("base = 'modern'\n[change]\nwidht = 3\n[training]\nsteps = 1\nrate = 1.0", r"^change\.widht: unknown field"),
        (
            "base = 'modern'\n[training]\nsteps = '4'\nrate = 1.0",
            r"^training\.steps: must be a valid integer, came '4'",
        ),
        ("base = ", r"study\.toml is not valid TOML"),
    ],
)
def test_the_base_and_what_all_arms_share(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text("widht = 3")
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(SpecError, match=message):
        load_study(tmp_path / "study.toml")


def test_a_base_is_found_beside_the_study_and_its_training_lies_under_the_studys(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "base.toml").write_text(
        "width = 32\nattention.heads = 2\n[training]\nrate = 0.5\nbatch = 3\n"
        "schedule = {kind='wsd', warmup=1}\noptimizer = {weight_decay=0.25}\nclip = 2.0"
    )
    (inner / "study.toml").write_text(
        "base = 'base.toml'\n[training]\nsteps = 7\nbatch = 5\nschedule = {kind='cosine'}\n"
        "optimizer = {beta1=0.5}\nclip = 'default'"
    )
    design = load_study(inner / "study.toml")
    assert design.arms[0].architecture.width == 32
    expected = Training(steps=7, rate=0.5, batch=5, schedule="cosine", optimizer={"weight_decay": 0.25, "beta1": 0.5})
    assert design.arms[0].training == expected


def test_arms_are_the_base_with_their_change(tmp_path: Path) -> None:
    design = load(
        tmp_path, "[arms.a]\nnorm.eps=0.125\ntraining={rate=0.5}\n[arms.b]\nattention.kv_heads=1", top="match = 'none'"
    )
    base, a, b = design.arms
    assert [arm.name for arm in design.arms] == ["base", "a", "b"]
    assert base.change == {}
    assert a.architecture == base.architecture.override({"norm": {"kind": "rms", "eps": 0.125}})
    assert (a.training.rate, b.training.rate, base.training.rate) == (0.5, 1e-3, 1e-3)
    assert a.training.override({"rate": 1e-3}) == base.training
    assert b.architecture == base.architecture.override({"attention": {"kv_heads": 1}})
    assert [arm.matched for arm in design.arms] == [None] * 3


def test_changes_from_the_command_line(tmp_path: Path) -> None:
    design = load(
        tmp_path,
        "[arms.a]\nnorm='layer'",
        *("seeds=[3,5]", "training.steps=9", "change.width=32", "arms.a.norm.eps=0.25", "arms.b.join=post"),
        top="match = 'none'",
    )
    assert design.study.seeds == (3, 5)
    assert {arm.training.steps for arm in design.arms} == {9}
    assert {arm.architecture.width for arm in design.arms} == {32}
    assert design.arms[1].architecture.norm.dump() == {"kind": "layer", "eps": 0.25, "bias": True}
    assert design.arms[2].architecture.join.kind == "post"
    for given, seeds in (("3", (0, 1, 2)), ("[7]", (7,)), ("1", (0,))):
        assert load(tmp_path, "", f"seeds={given}").study.seeds == seeds


def test_an_arm_like_the_base_is_allowed(tmp_path: Path) -> None:
    base, same, named = load(tmp_path, "[arms.same]\n[arms.named]\nnorm='rms'").arms
    assert base.architecture == same.architecture == named.architecture
    assert base.training == same.training
    assert same.matched is not None
    assert (same.matched.field, same.matched.residual) == (None, 0.0)


def test_leave_one_out_adds_arms_that_lack_one_change(tmp_path: Path) -> None:
    design = load(
        tmp_path,
        "[arms.all]\nnorm='layer'\njoin='post'\ntraining={rate=0.5}\n[match]\nknobs={all-without-norm='ffn.hidden'}",
        top="leave_one_out = 'all'",
    )
    told = {
        arm.name: (arm.architecture.norm.kind, arm.architecture.join.kind, arm.training.rate) for arm in design.arms
    }
    assert told == {
        "base": ("rms", "pre", 1e-3),
        "all": ("layer", "post", 0.5),
        "all-without-norm": ("rms", "post", 0.5),
        "all-without-join": ("layer", "pre", 0.5),
        "all-without-training": ("layer", "post", 1e-3),
    }


def test_what_is_written_resolves_everything(tmp_path: Path) -> None:
    design = load(tmp_path, "[arms.a]\nattention.kv_heads=1")
    written: dict[str, Any] = design.dump()
    assert written["format"] == 1
    assert list(written) == [
        "format",
        "name",
        "base",
        "training",
        "arms",
        "match",
        "seeds",
        "margin",
        "sweep",
        "digest",
    ]
    assert written["base"] == written["arms"][0]["architecture"] == design.arms[0].architecture.dump()
    assert written["arms"][0] | {"architecture": 0, "training": 0} == {
        "name": "base",
        "change": {},
        "architecture": 0,
        "training": 0,
        "knob": None,
    }
    knob = written["arms"][1]["knob"]
    assert set(knob) == {"field", "value", "budget", "base", "arm", "residual"}
    assert (knob["field"], knob["budget"]) == ("ffn.hidden", "params")
    assert written["seeds"] == [0, 1]
    assert load(tmp_path, "[arms.a]\nattention.kv_heads=1").digest == design.digest
    assert load(tmp_path, "[arms.a]\nattention.kv_heads=1", "margin=0.02").digest != design.digest
