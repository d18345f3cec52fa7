"""What cannot work is refused by path, with what came and what is allowed, before any memory is taken."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest

import kinds
from isoflop.model import Architecture, build
from isoflop.model.kernel import check_kernel
from isoflop.model.term import Scoring, Term
from isoflop.spec import SpecError

REFUSED: list[tuple[dict[str, Any], str, list[str]]] = [
    # change, path, words
    ({"windw": 3}, "windw", ["unknown field", "fields here are position, norm", "Did you mean 'attention.window'?"]),
    ({"attention": {"widow": 3}}, "attention.widow", ["unknown field", "Did you mean 'window'?"]),
    ({"norm": {"kind": "rms", "epz": 1.0}}, "norm.epz", ["fields here are eps, cast", "Did you mean 'eps'?"]),
    ({"ffn": {"kind": "plain", "multiple": 4}}, "ffn.multiple", ["unknown field", "activation, hidden, bias, dropout"]),
    ({"join": {"kind": "pre", "alpha": 1}}, "join.alpha", ["unknown field", "there are no fields here"]),
    ({"norm": "rmss"}, "norm", ["'rmss' is no kind of Norm", "there are layer, rms", "Did you mean 'rms'?"]),
    ({"norm": {"kind": 5}}, "norm", ["5 is no kind of Norm"]),
    ({"norm": 5}, "norm", ["must be the name of a Norm kind or a table", "came 5"]),
    ({"norm": ["rms"]}, "norm", ["must be the name of a Norm kind or a table", "came ['rms']"]),
    ({"position": ["rpoe"]}, "position.0", ["'rpoe' is no kind of Position", "Did you mean 'rope'?"]),
    ({"attention": {"qk_norm": "rmz"}}, "attention.qk_norm", ["no kind of Norm", "Did you mean 'rms'?"]),
    ({"ffn": {"activation": "gelu2"}}, "ffn.activation", ["no kind of Activation", "Did you mean 'gelu'?"]),
    (
        {"ffn": {"activation": {"form": "tan"}}},
        "ffn.activation.form",
        ["'exact' or 'tanh'", "came 'tan'", "Did you mean 'tanh'?"],
    ),
    ({"form": "decodr"}, "form", ["must be 'decoder'", "came 'decodr'", "Did you mean 'decoder'?"]),
    ({"dropout": 1.0}, "dropout", ["less than 1", "came 1.0"]),
    ({"dropout": -0.1}, "dropout", ["greater than or equal to 0", "came -0.1"]),
    ({"dropout": math.nan}, "dropout", ["finite", "came nan"]),
    ({"attention": {"softcap": math.inf}}, "attention.softcap", ["finite", "came inf"]),
    ({"attention": {"scale": 0.0}}, "attention.scale", ["greater than 0", "came 0.0"]),
    ({"attention": {"window": 0}}, "attention.window", ["greater than or equal to 1", "came 0"]),
    ({"attention": {"memory": 0}}, "attention.memory", ["greater than or equal to 1", "came 0"]),
    ({"attention": {"memory": 4, "window": 4}}, "attention.memory", ["at most 3", "a window of 4", "came 4"]),
    (
        {"attention": {"memory": 4}, "form": "encoder"},
        "attention.memory",
        ["a decoder goes on with", "form = 'decoder'", "came 'encoder'"],
    ),
    ({"attention": {"memory": 4}, "form": "encoder_decoder"}, "attention.memory", ["came 'encoder_decoder'"]),
    (
        {"form": "encoder_decoder", "cross": {"kind": "multi_head", "memory": 4}},
        "cross.memory",
        ["a decoder goes on with"],
    ),
    (
        {"attention": {"memory": 4}, "position": ["rope", "transformer_xl"]},
        "attention.memory",
        ["'rope' turns queries", "vectors of 'transformer_xl'", "remove one of the two"],
    ),
    (
        {"attention": {"memory": 4}, "position": ["learned", "alibi"]},
        "attention.memory",
        ["'learned' counts each segment from its own start", "'transformer_xl', 'rope' or 'alibi'"],
    ),
    (
        {"blocks": [{"at": "1", "attention": {"memory": 4, "value_residual": "fixed"}}]},
        "blocks.0.attention.value_residual",
        ["as long a memory here as in the first block", "4, there 0"],
    ),
    (
        {
            "attention": {
                "memory": 4,
                "priors": {"kind": "penalty", "measure": {"kind": "gaussian", "centre": "before"}},
            }
        },
        "attention.priors.measure.centre",
        ["'before' counts from the start of a text", "take 'self'"],
    ),
    ({"init": {"std": 0.0}}, "init.std", ["greater than 0"]),
    ({"depth": 0}, "depth", ["greater than or equal to 1", "came 0"]),
    ({"depth": 2.0}, "depth", ["valid integer", "came 2.0"]),
    ({"depth": True}, "depth", ["valid integer", "came True"]),
    ({"tie_head": "true"}, "tie_head", ["valid boolean", "came 'true'"]),
    ({"position": [{"kind": "learned", "length": 0}]}, "position.0.length", ["came 0"]),
    ({"position": [{"kind": "rope", "base": 1.0}]}, "position.0.base", ["greater than 1", "came 1.0"]),
    ({"position": []}, "position", ["at least one kind", "'none' is one"]),
    ({"position": ["none", "rope"]}, "position", ["'none' stands beside rope", "remove one"]),
    ({"position": ["rope", "alibi", "rope"]}, "position", ["'rope' twice"]),
    ({"attention": {"heads": 5}}, "attention.heads", ["must divide width 24", "came 5", "4 and 6"]),
    ({"attention": {"kv_heads": 4}}, "attention.kv_heads", ["must divide heads 6", "came 4", "3 and 6"]),
    ({"attention": {"heads": 8}}, "position", ["rope turns pairs", "came 1 x 3 = 3"]),
    ({"position": [{"kind": "rope", "fraction": 0.1}]}, "position", ["rope turns pairs", "0.1 x 4 = 0"]),
    ({"position": ["alibi", {"kind": "rope", "fraction": 0.1}]}, "position.1", ["rope turns pairs"]),
    (
        {"width": 25, "attention": {"heads": 5}, "position": ["sinusoidal"]},
        "position",
        ["width must be even", "came 25"],
    ),
    ({"ffn": {"kind": "glu", "hidden": 8, "multiple": 4}}, "ffn.multiple", ["does nothing when hidden is given"]),
    ({"blocks": {"at": "1"}}, "blocks", ["must be a list"]),
    ({"blocks": [5]}, "blocks.0", ["came 5"]),
    ({"blocks": [{"norm": "rms"}]}, "blocks.0.at", ["must be given"]),
    ({"blocks": [{"at": "1"}]}, "blocks.0", ["changes nothing", "fields are position, norm"]),
    ({"blocks": [{"at": "2", "norm": "rms"}]}, "blocks.0.at", ["one of the 2 blocks", "came '2'"]),
    ({"blocks": [{"at": "-3", "norm": "rms"}]}, "blocks.0.at", ["one of the 2 blocks", "came '-3'"]),
    ({"blocks": [{"at": "", "norm": "rms"}]}, "blocks.0.at", ["one of the 2 blocks", "came ''"]),
    ({"blocks": [{"at": "::0", "norm": "rms"}]}, "blocks.0.at", ["step 0"]),
    ({"blocks": [{"at": "5:", "norm": "rms"}]}, "blocks.0.at", ["names none of the 2 blocks"]),
    ({"blocks": [{"at": "odd", "norm": "rms"}]}, "blocks.0.at", ["index or a Python slice", "'::2'", "came 'odd'"]),
    ({"blocks": [{"at": "1:2:1:1", "norm": "rms"}]}, "blocks.0.at", ["index or a Python slice"]),
    (
        {"blocks": [{"at": "0", "dropout": 0.1}, {"at": "1", "nrm": "rms"}]},
        "blocks.1.nrm",
        ["unknown", "Did you mean 'norm'?"],
    ),
    ({"blocks": [{"at": "1", "width": 8}]}, "blocks.0.width", ["unknown field", "fields here are position"]),
    ({"blocks": [{"at": "1", "attention": {"heads": 5}}]}, "blocks.0.attention.heads", ["must divide width 24"]),
    ({"blocks": [{"at": "1", "attention": {"head_width": 5}}]}, "blocks.0.position", ["came 1 x 5 = 5"]),
    (
        {"blocks": [{"at": "1", "position": "learned"}]},
        "blocks.0.position",
        ["'learned' acts on the embeddings", "whole model"],
    ),
    ({"attention": {"priors": "penalti"}}, "attention.priors.0", ["no kind of Prior", "Did you mean 'penalty'?"]),
    ({"attention": {"priors": {"gamma": -1.0}}}, "attention.priors.0.gamma", ["greater than or equal to 0"]),
    (
        {"attention": {"priors": {"gamma": 0.0, "gamma_is": "learned"}}},
        "attention.priors.gamma",
        ["above 0 where gamma_is is 'learned'", "came 0"],
    ),
    ({"attention": {"priors": {"heads": [0, 6]}}}, "attention.priors.heads", ["0 to 5", "came [0, 6]"]),
    ({"attention": {"priors": {"heads": [1, 1]}}}, "attention.priors.heads", ["each head once", "came [1, 1]"]),
    ({"attention": {"priors": {"heads": []}}}, "attention.priors.heads", ["at least one", "came []"]),
    ({"attention": {"priors": {"heads": [-1]}}}, "attention.priors.0.heads.0", ["came -1"]),
    (
        {"attention": {"priors": ["penalty", {"kind": "mixture", "beta": 1.0, "beta_is": "predicted"}]}},
        "attention.priors.1.beta",
        ["between 0 and 1 where beta_is is 'predicted'", "came 1"],
    ),
    (
        {"attention": {"priors": {"measure": {"kind": "gaussian", "centre": "anywhere"}}}},
        "attention.priors.measure.centre",
        ["'anywhere' depends on the length", "causal", "take 'before' or 'self'"],
    ),
    (
        {"attention": {"priors": {"measure": {"kind": "gaussian", "centre": "before", "offset": 1.0}}}},
        "attention.priors.measure.offset",
        ["does nothing", "centre = 'before'"],
    ),
    (
        {"attention": {"priors": {"measure": {"kind": "gaussian", "offset": [1.0, 2.0]}, "heads": [3]}}},
        "attention.priors.measure.offset",
        ["1 to 1 numbers", "came 2"],
    ),
    (
        {"attention": {"priors": {"measure": {"kind": "gaussian", "offset": [1.0, 2.0], "offset_is": "learned"}}}},
        "attention.priors.measure.offset",
        ["must be 1 number", "came 2"],
    ),
    (
        {"attention": {"priors": {"measure": {"kind": "gaussian", "sigma": 0.0}}}},
        "attention.priors.0.measure.sigma",
        ["greater than 0.001", "came 0.0"],
    ),
    (
        {"attention": {"priors": {"measure": {"kind": "gaussian_transformer", "b": 0.0, "b_is": "per_head"}}}},
        "attention.priors.measure.b",
        ["below 0 where b_is is 'per_head'", "came 0"],
    ),
    (
        {"attention": {"priors": {"kind": "multiplicative", "on": "probabilities", "decay": "softmax"}}},
        "attention.priors.decay",
        ["'softmax' divides a row by one number", "take 'exp'"],
    ),
    (
        {"attention": {"priors": {"kind": "hard_coded", "heads": [0, 1, 2, 3, 4, 5]}}},
        "attention.priors.heads",
        ["must leave one of the 6 heads", "take attention = 'hard_coded'"],
    ),
    (
        {"position": ["rope", "sinusoidal"], "attention": {"kind": "hard_coded", "heads": 6}},
        "attention",
        ["neither queries nor keys, between which position 'rope' would act", "set position = 'none'"],
    ),
    (
        {"position": "none", "attention": {"kind": "hard_coded", "heads": 5}},
        "attention.heads",
        ["must divide width 24, came 5"],
    ),
    (
        {"form": "encoder_decoder", "cross": {"kind": "hard_coded"}},
        "cross",
        ["'hard_coded' cannot look at an encoder", "multi_head"],
    ),
    (
        {"blocks": [{"at": "1", "attention": {"heads": 2, "priors": {"heads": 2}}}]},
        "blocks.0.attention.priors.heads",
        ["0 to 1", "came [2]"],
    ),
    (
        {"attention": {"gate": "heads"}},
        "attention.gate",
        ["must be 'none', 'head' or 'element'", "Did you mean 'head'?"],
    ),
    ({"attention": {"value_residual": "lurp"}}, "attention.value_residual", ["no kind", "Did you mean 'lerp'?"]),
    (
        {"attention": {"value_residual": {"kind": "fixed", "own": 0.0}}},
        "attention.value_residual.own",
        ["must not be 0", "own values of the block without use"],
    ),
    (
        {"depth": 1, "attention": {"value_residual": "learned"}},
        "attention.value_residual",
        ["does nothing", "no later"],
    ),
    (
        {"blocks": [{"at": "0", "attention": {"value_residual": "learned"}}]},
        "blocks.0.attention.value_residual",
        ["does nothing: the first block has no block before it"],
    ),
    (
        {"blocks": [{"at": "1", "attention": {"value_residual": "learned", "kv_heads": 2}}]},
        "blocks.0.attention.value_residual",
        ["must be the same", "2 of 4 here, 6 of 4 in the first block"],
    ),
    (
        {"form": "encoder_decoder", "cross": {"value_residual": "learned"}},
        "cross.value_residual",
        ["values of the same text", "remove it"],
    ),
    (
        {"position": {"kind": "rope", "scaling": "yarm"}},
        "position.0.scaling",
        ["no kind of Scaling", "Did you mean 'yarn'?"],
    ),
    (
        {"position": {"kind": "rope", "scaling": {"kind": "linear", "factor": 1.0}}},
        "position.0.scaling.factor",
        ["greater than 1", "came 1.0"],
    ),
    (
        {"position": {"kind": "rope", "scaling": {"kind": "dynamic_ntk", "longest": 2048}}},
        "position.0.scaling.longest",
        ["must be above original_length 2048", "came 2048"],
    ),
    (
        {"position": {"kind": "rope", "fraction": 0.5, "scaling": "dynamic_ntk"}},
        "position.scaling",
        ["needs two pairs", "came 2"],
    ),
    (
        {"position": {"kind": "rope", "scaling": {"kind": "yarn", "beta_fast": 1.0}}},
        "position.0.scaling.beta_fast",
        ["must be above beta_slow 1", "came 1"],
    ),
    (
        {"position": {"kind": "rope", "scaling": {"kind": "llama3", "high_frequency_factor": 1.0}}},
        "position.0.scaling.high_frequency_factor",
        ["must be above low_frequency_factor 1", "came 1"],
    ),
    (
        {"position": ["alibi", {"kind": "rope", "scaling": {"kind": "longrope", "long_factors": [1.0, 2.0, 3.0]}}]},
        "position.1.scaling.long_factors",
        ["one for each of 2 pairs", "came 3"],
    ),
    (
        {"position": {"kind": "rope", "scaling": {"kind": "proportional", "fraction": 0.25}}},
        "position.scaling.fraction",
        ["turns none of 2 pairs", "came 0.25"],
    ),
    ({"position": {"kind": "t5", "max_distance": 16}}, "position.max_distance", ["must be above 16", "came 16"]),
    (
        {"form": "encoder", "position": {"kind": "t5", "buckets": 7}},
        "position.buckets",
        ["even and at least 4", "came 7"],
    ),
    (
        {"position": {"kind": "relative", "key": False, "value": False}},
        "position.0",
        ["a table for one of query, key and value"],
    ),
    ({"position": {"kind": "relative", "reach": 0}}, "position.0.key", ["does nothing at reach 0", "key = false"]),
    (
        {"width": 25, "attention": {"heads": 5}, "position": "transformer_xl"},
        "position",
        ["width must be even", "came 25"],
    ),
    ({"plugins": [3]}, "plugins.0", ["valid string", "came 3"]),
]


@pytest.mark.parametrize(
    ("change", "path", "words"), REFUSED, ids=[f"{path}-{n}" for n, (_, path, _) in enumerate(REFUSED)]
)
def test_what_cannot_work_is_refused_by_path(change: dict[str, Any], path: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        kinds.tiny(change)
    problem = caught.value.problems[0]
    assert ".".join(map(str, problem.path)) == path
    for word in words:
        assert word in problem.message, problem.message
    assert not re.search(r"function-|pydantic|https?:", str(caught.value))


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        Architecture(depth=0, norm="rmss", attention={"heads": 0, "window": -1})
    assert [".".join(map(str, problem.path)) for problem in caught.value.problems] == [
        "norm",
        "attention.heads",
        "attention.window",
        "depth",
    ]
    assert str(caught.value).count("\n") == 3


@pytest.mark.parametrize(
    "change",
    [
        {"attention": {"heads": 7}},
        {"attention": {"kv_heads": 4}},
        {"position": ["none", "rope"]},
        {"blocks": [{"at": "1", "attention": {"heads": 7}}]},
        {"ffn": {"kind": "glu", "hidden": 10**9, "multiple": 8}},
    ],
)
@pytest.mark.parametrize("width", [10**9, 999_999_937])
def test_an_illegal_pair_of_any_size_is_refused_at_once(change: dict[str, Any], width: int) -> None:
    started = time.perf_counter()
    with pytest.raises(SpecError):
        kinds.tiny({"vocab": 10**9, "width": width}, change)
    assert time.perf_counter() - started < 1


def test_a_legal_size_beyond_memory_is_declared_at_once() -> None:
    assert kinds.tiny({"vocab": 10**9, "width": 24 * 10**8}).width == 24 * 10**8


# ------------------------------------------------------------------------------------------------------ kernels


def test_a_kernel_that_cannot_run_what_is_declared_is_refused_by_name() -> None:
    capped = kinds.tiny({"attention": {"softcap": 5.0}})
    with pytest.raises(ValueError, match=r"'sdpa' cannot run stage cap; these can: flex, eager, banded, chunked"):
        build(capped, kernel="sdpa")
    with pytest.raises(ValueError, match=r"'flash' is no kernel; there are flex, sdpa, eager, banded, chunked"):
        build(kinds.tiny(), kernel="flash")


def test_a_stage_that_no_kernel_knows_is_refused_by_name() -> None:
    class Strange(Term):
        stages = frozenset({"melt"})

    scoring = Scoring(1.0, True, None, None, 0.0, (Strange(),))
    for forced in (None, "eager"):
        with pytest.raises(
            ValueError, match=r"no kernel can run the stages melt; the stages are rotate, absolute, add"
        ):
            check_kernel(scoring, forced)
