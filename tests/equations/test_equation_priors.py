"""Eq. 1-7: each way a prior acts against loops in fp64, and what must come out of it at its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kinds
from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.position import ALiBi
from isoflop.model.prior.measure import ends
from isoflop.model.prior.number import ANY, NEGATIVE, POSITIVE, SHARE, above
from isoflop.model.relation import Relation, by_offset
from isoflop.model.slots import Measure, Prior
from isoflop.model.term import Scoring
from isoflop.plan.cost import price
from models import FP32, SETTING, TRAINING_KERNELS, lively, logits_of, meeting, some_tokens

HEADS, WIDTH, TOKENS = 3, 4, 9
GAUSS = {"kind": "gaussian"}


def term(prior: Any, heads: int = HEADS) -> Any:
    built = Prior.parse(prior).term(SETTING, heads, WIDTH)
    with torch.no_grad():
        for module in built.modules():
            for name, values in getattr(module, "initial", {}).items():
                module.get_parameter(name).copy_(torch.tensor(values))
    return built


def scoring(*priors: Any, causal: bool = True, heads: int = HEADS, **fields: Any) -> Scoring:
    terms = tuple(term(prior, heads) for prior in priors)
    return replace(Scoring(0.7, causal, None, None, 0.0, terms), **fields)


def drawn(heads: int = HEADS, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, tokens, WIDTH, generator=numbers) for _ in range(3))
    return q, k, v


def plain_places(tokens: int = TOKENS) -> Places:
    positions = torch.arange(tokens)[None]
    return Places(positions, positions, consecutive=True)


def output(said: Scoring, kernel: str = "eager", places: Places | None = None, values: Tensor | None = None) -> Tensor:
    q, k, v = drawn()
    return TRAINING_KERNELS[kernel].run(meeting(q, k, v if values is None else values, said, places or plain_places()))


def weights(said: Scoring, places: Places | None = None) -> Tensor:
    """What attention puts on each key: its output for values that are unit vectors."""
    return output(said, places=places, values=torch.eye(TOKENS).expand(2, HEADS, -1, -1))


def measured(measure: Any) -> Tensor:
    """G of every head and pair."""
    taken = term({"kind": "penalty", "measure": measure}).add(
        meeting(*drawn(), scoring(causal=False), Places(torch.arange(TOKENS)[None], torch.arange(TOKENS)[None]))
    )
    return -taken.at(Places(torch.arange(TOKENS)[None], torch.arange(TOKENS)[None]).view(plain_places().whole))


def grid() -> tuple[Tensor, Tensor]:
    i, j = torch.arange(TOKENS).float()[:, None], torch.arange(TOKENS).float()[None]
    return i, j


# ------------------------------------------------------------------------------------------------ (a) what does nothing

IDLE: list[Any] = [
    {"kind": "penalty", "gamma": 0.0},
    {"kind": "penalty", "gamma": 0.0, "measure": GAUSS},
    {"kind": "multiplicative", "gamma": 0.0},
    {"kind": "multiplicative", "gamma": 0.0, "on": "probabilities"},
    {"kind": "mixture", "beta": 0.0},
]


@pytest.mark.parametrize("prior", IDLE, ids=str)
@pytest.mark.parametrize("kernel", ["eager", "chunked"])
def test_a_weight_of_zero_is_no_prior_to_the_last_bit(prior: Any, kernel: str) -> None:
    assert torch.equal(output(scoring(prior), kernel), output(scoring(), kernel))


@pytest.mark.parametrize("kind", ["penalty", "multiplicative", "mixture", "hard_coded"])
def test_heads_that_are_not_chosen_are_left_as_they_are(kind: str) -> None:
    prior = {"kind": kind, "heads": [1], **({"on": "absolute"} if kind == "multiplicative" else {})}
    found, plain = output(scoring(prior)), output(scoring())
    assert torch.equal(found[:, [0, 2]], plain[:, [0, 2]])
    assert (found[:, 1] - plain[:, 1]).abs().max() > 1e-3


def test_a_wide_gaussian_is_no_prior_and_a_narrow_one_sees_one_key() -> None:
    def with_width(sigma: float, offset: float = 0.0) -> Tensor:
        return output(scoring({"measure": {**GAUSS, "sigma": sigma, "offset": offset}}))

    torch.testing.assert_close(with_width(1e5), output(scoring()), **FP32)
    _, _, v = drawn()
    assert torch.equal(with_width(0.01), v)
    assert torch.equal(with_width(0.01, -2.0)[:, :, 2:], v[:, :, :-2])


# ------------------------------------------------------------------------------------------------ eq. 2, 3 and others


def test_distance() -> None:
    i, j = grid()
    assert torch.equal(measured("distance"), (i - j).abs().expand(1, 1, -1, -1))


@pytest.mark.parametrize("sigma", [0.5, 4.0])
def test_gaussian_with_offsets_dealt_in_turn(sigma: float) -> None:
    i, j = grid()
    found = measured({**GAUSS, "sigma": sigma, "offset": [0.0, -1.5]})
    for head, offset in enumerate([0.0, -1.5, 0.0]):
        torch.testing.assert_close(found[0, head], (j - i - offset) ** 2 / (2 * sigma**2))


def test_the_window_of_localness_is_two_sigma() -> None:
    """As the authors write it: a bias of -2 ((j - P) / D)², D their window."""
    i, j = grid()
    torch.testing.assert_close(measured({**GAUSS, "sigma": 10.0 / 2})[0, 0], 2 * ((j - i) / 10.0) ** 2)


def test_gaussian_transformer() -> None:
    i, j = grid()
    found = measured({"kind": "gaussian_transformer", "w": 0.3, "b": -1.0})
    torch.testing.assert_close(found[0, 0], (0.3 * (i - j) ** 2 - 1.0).abs())
    # b lowers the bias of a neighbour below that of the query itself.
    assert found[0, 0, 4, 5] < found[0, 0, 4, 4] == 1.0


def test_a_gaussian_is_a_table_of_offsets() -> None:
    table = -(torch.arange(-TOKENS + 1, TOKENS) ** 2 / (2 * 9.0)).expand(HEADS, -1)
    view = plain_places().view(plain_places().whole)
    torch.testing.assert_close(
        -measured({**GAUSS, "sigma": 3.0}).expand(1, HEADS, -1, -1), by_offset(table, view, 1 - TOKENS)
    )


def test_a_gaussian_is_a_product_of_longer_queries_and_keys() -> None:
    """-(i - j)² / 2s² = ij/s² - j²/2s² - i²/2s², and the last is one number for a row."""
    q, k, v = drawn()
    i = torch.arange(TOKENS).float().view(1, 1, -1, 1).expand(2, HEADS, -1, 1)
    longer_q = torch.cat([q * 0.7, i / 9, torch.ones_like(i)], dim=-1)
    longer_k = torch.cat([k, i, -(i**2) / 18], dim=-1)
    expected = F.scaled_dot_product_attention(longer_q, longer_k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(output(scoring({"measure": {**GAUSS, "sigma": 3.0}})), expected, **FP32)


@pytest.mark.parametrize("measure", ["distance", {**GAUSS, "sigma": 1.5, "offset": -1.0}], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_a_penalty_is_a_mask_of_torchs_attention(measure: Any, causal: bool) -> None:
    q, k, v = drawn()
    i, j = grid()
    mask = (-0.6 * measured(measure)).masked_fill(causal & (j > i), -math.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)
    for kernel in TRAINING_KERNELS:
        found = output(scoring({"measure": measure, "gamma": 0.6}, causal=causal), kernel)
        torch.testing.assert_close(found, expected, **FP32)


def test_distance_is_alibi_and_alibi_is_the_key_alone() -> None:
    """Slopes by head as one prior for each; under a causal mask |i - j| and -j differ by a number for the row."""
    slopes = ALiBi().term(SETTING, 6, 4).slopes
    priors = [{"kind": "penalty", "gamma": slope, "heads": [head]} for head, slope in enumerate(slopes)]
    mine = kinds.tiny({"position": [{"kind": "none"}], "attention": {"priors": priors}})
    theirs = kinds.tiny({"position": [{"kind": "alibi"}]})
    tokens = some_tokens(mine, 2, TOKENS)
    torch.testing.assert_close(logits_of(lively(mine), tokens), logits_of(lively(theirs), tokens), **FP32)

    q, k, v = drawn()
    i, j = grid()
    by_key = (0.25 * j).masked_fill(j > i, -math.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=by_key, scale=0.7)
    torch.testing.assert_close(output(scoring({"gamma": 0.25})), expected, **FP32)


# ------------------------------------------------------------------------------------------------ predicted centres


def test_the_ends_of_a_document_are_those_of_its_own_keys() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 5, 6], [9, 9, 0, 1, 2, 3, 4]])
    documents = torch.tensor([[3, 3, 3, 8, 8, 1, 1], [-1, -1, 0, 0, 0, 0, 0]])
    first, last = ends(Places(positions, positions, documents, documents))
    assert first[:, 0, :, 0].tolist() == [[0, 0, 0, 0, 0, 5, 5], [9, 9, 0, 0, 0, 0, 0]]
    assert last[:, 0, :, 0].tolist() == [[2, 2, 2, 1, 1, 6, 6], [9, 9, 4, 4, 4, 4, 4]]
    first, last = ends(Places(positions, positions))
    assert first[:, 0, :, 0].tolist() == [[0], [0]]
    assert last[:, 0, :, 0].tolist() == [[6], [9]]


@pytest.mark.parametrize(("span", "values"), [
    (POSITIVE, [1e-6, 0.5, 3.0, 700.0, 1e5]),
    (NEGATIVE, [-1e-6, -0.5, -700.0]),
    (above(1e-3), [2e-3, 1.0, 300.0]),
    (SHARE, [1e-4, 0.5, 0.999]),
    (ANY, [-3.0, 0.0, 1e6]),
])  # fmt: skip
def test_a_number_that_is_learned_starts_as_declared(span: Any, values: Sequence[float]) -> None:
    for value in values:
        assert float(span.into(torch.tensor(span.back(value)))) == pytest.approx(value, rel=1e-5)


MOVING: list[tuple[Any, Any]] = [
    ({"gamma_is": "learned"}, {}),
    ({"gamma_is": "per_head"}, {}),
    ({"kind": "mixture", "beta_is": "per_head", "beta": 0.2}, {"kind": "mixture", "beta": 0.2}),
    ({"measure": {**GAUSS, "sigma_is": "per_head", "offset": [-1.0, 1.0], "offset_is": "per_head"}},
     {"measure": {**GAUSS, "offset": [-1.0, 1.0]}}),
    ({"measure": {"kind": "gaussian_transformer", "w_is": "learned", "b_is": "per_head"}},
     {"measure": {"kind": "gaussian_transformer"}}),
]  # fmt: skip


@pytest.mark.parametrize(("moving", "fixed"), MOVING, ids=str)
def test_what_is_learned_starts_where_the_fixed_one_stands(moving: Any, fixed: Any) -> None:
    torch.testing.assert_close(output(scoring(moving)), output(scoring(fixed)), **FP32)
    declared = [kinds.tiny({"attention": {"priors": prior}}) for prior in (moving, fixed)]
    tokens = some_tokens(declared[0], 1, TOKENS)
    torch.testing.assert_close(*(logits_of(build(architecture), tokens) for architecture in declared), **FP32)


def test_what_is_predicted_starts_where_the_fixed_one_stands_for_a_query_of_zeros() -> None:
    q = torch.zeros(1, HEADS, 1, WIDTH)
    prior = {"kind": "mixture", "beta": 0.3, "beta_is": "predicted", "measure": {**GAUSS, "sigma_is": "predicted"}}
    built = term(prior)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if not name.endswith("raw"):
                parameter.fill_(0.5)
    met = meeting(q, q, q, scoring(), Places(torch.tensor([[3]]), torch.tensor([[3]])))
    torch.testing.assert_close(built.beta(met), torch.full((1, HEADS, 1, 1), 0.3))
    torch.testing.assert_close(built.weighed.measure.sigma(met), torch.full((1, HEADS, 1, 1), 4.0))


# ------------------------------------------------------------------------------------------------ eq. 6


def test_a_mixture_sums_to_one_and_has_its_limits() -> None:
    i, j = grid()
    masked = (-(i - j).abs()).masked_fill(j > i, -math.inf).softmax(-1)
    half, whole = weights(scoring({"kind": "mixture", "beta": 0.5})), weights(scoring({"kind": "mixture", "beta": 1.0}))
    torch.testing.assert_close(whole, masked.expand_as(whole), **FP32)
    torch.testing.assert_close(half, (weights(scoring()) + masked) / 2, **FP32)
    torch.testing.assert_close(half.sum(-1), torch.ones(2, HEADS, TOKENS), **FP32)
    uniform = weights(scoring({"kind": "mixture", "beta": 1.0, "gamma": 0.0}))
    torch.testing.assert_close(uniform, ((j <= i) / (i + 1)).expand_as(uniform), **FP32)


@pytest.mark.parametrize("beta_is", ["learned", "per_head", "predicted"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_mixture_of_any_share_sums_to_one(beta_is: str, causal: bool) -> None:
    said = scoring({"kind": "mixture", "beta": 0.3, "beta_is": beta_is, "measure": GAUSS}, causal=causal)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in said.terms[0].parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 2)
    share = said.terms[0].beta(meeting(*drawn(), said, plain_places()))  # pyright: ignore[reportCallIssue]
    shapes = {"learned": (1, 1, 1, 1), "per_head": (1, HEADS, 1, 1), "predicted": (2, HEADS, TOKENS, 1)}
    assert share.shape == shapes[beta_is]
    torch.testing.assert_close(weights(said).sum(-1), torch.ones(2, HEADS, TOKENS), **FP32)


def test_mixtures_act_in_their_order() -> None:
    one, other = {"kind": "mixture", "beta": 0.5}, {"kind": "mixture", "beta": 0.25, "gamma": 0.0}
    plain, first, second = (
        weights(scoring(*priors)) for priors in ([], [{**one, "beta": 1.0}], [{**other, "beta": 1.0}])
    )
    torch.testing.assert_close(weights(scoring(one, other)), (plain + first) * 0.375 + second * 0.25, **FP32)
    torch.testing.assert_close(weights(scoring(other, one)), plain * 0.375 + second * 0.125 + first * 0.5, **FP32)


def test_penalties_add() -> None:
    i, j = grid()
    both = weights(scoring({"gamma": 0.5}, {"measure": GAUSS, "gamma": 2.0}))
    q, k, _ = drawn()
    scores = 0.7 * q @ k.mT - 0.5 * (i - j).abs() - 2 * (i - j) ** 2 / 32
    torch.testing.assert_close(both, scores.masked_fill(j > i, -math.inf).softmax(-1), **FP32)


# ------------------------------------------------------------------------------------------------ eq. 7

LOGITS, DECAY = (2.0, -3.0, -3.0, 1.0), (1.0, 0.5, 0.1, 0.01)


@pytest.fixture
def table_measure() -> Iterator[None]:
    """A measure of a user's own: G = -log G' for a G' that is written down."""
    with kinds.registry_restored():

        class Table(Measure, kind="table"):
            def build(self, chosen: Any) -> nn.Module:
                return TableMeasure()

        yield


class TableMeasure(nn.Module):
    def forward(self, met: Any) -> Relation:
        return Relation(lambda rows, columns, shared, view: -torch.tensor(DECAY).log()[view.k_positions][:, None, None])


@pytest.mark.usefixtures("table_measure")
@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (None, (0.724, 0.005, 0.005, 0.266)),
        # As printed a factor raises a negative score: the third key has 16 times its weight.
        ("logits", (0.789, 0.024, 0.079, 0.108)),
        ("absolute", None),
        ("probabilities", (0.992, 0.003, 0.001, 0.004)),
    ],
)
def test_a_factor_on_scores_that_are_negative(on: str | None, expected: Sequence[float] | None) -> None:
    priors = [] if on is None else [{"kind": "multiplicative", "on": on, "measure": "table"}]
    q, k = torch.tensor([1.0, 0, 0, 0]).view(1, 1, 1, 4), torch.zeros(1, 1, 4, 4)
    k[0, 0, :, 0] = torch.tensor(LOGITS)
    places = Places(torch.tensor([[3]]), torch.arange(4)[None])
    said = scoring(*priors, heads=1, scale=1.0)
    if expected is None:
        powers = [math.exp(abs(s) * g) for s, g in zip(LOGITS, DECAY, strict=True)]
        expected = [power / sum(powers) for power in powers]
    found = TRAINING_KERNELS["eager"].run(meeting(q, k, torch.eye(4).view(1, 1, 4, 4), said, places))
    assert found.flatten().tolist() == pytest.approx(list(expected), abs=6e-4)


def test_a_factor_on_probabilities_that_decays_exponentially_is_a_penalty() -> None:
    factor = {"kind": "multiplicative", "on": "probabilities", "gamma": 0.4, "measure": GAUSS}
    assert torch.equal(output(scoring(factor)), output(scoring({"gamma": 0.4, "measure": GAUSS})))


def test_t_gsa() -> None:
    """softmax(|G S|), G = exp(-(i - j)² / s²) with s² = 2 sigma²."""
    q, k, _ = drawn()
    i, j = grid()
    scores = (torch.exp(-((i - j) ** 2) / 8.0) * (0.7 * q @ k.mT)).abs()
    prior = {"kind": "multiplicative", "on": "absolute", "measure": {**GAUSS, "sigma": 2.0}}
    found = weights(scoring(prior, causal=False))
    torch.testing.assert_close(found, scores.softmax(-1), **FP32)


@pytest.mark.parametrize("kernel", ["eager", "banded", "chunked"])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 4), (False, None), (False, 3)])
def test_a_decay_that_is_normalised_sums_to_one_over_the_keys_of_a_query(
    kernel: str, causal: bool, window: int | None
) -> None:
    q, k, v = drawn()
    i, j = grid()
    hidden = (causal & (j > i)) | ((i - j).abs() >= (window or TOKENS))
    factor = (-((i - j + 1) ** 2) / 8).masked_fill(hidden, -math.inf).softmax(-1)
    torch.testing.assert_close(factor.sum(-1), torch.ones(TOKENS))
    expected = (factor * (0.7 * q @ k.mT)).masked_fill(hidden, -math.inf).softmax(-1) @ v
    prior = {"kind": "multiplicative", "decay": "softmax", "measure": {**GAUSS, "sigma": 2.0, "offset": 1.0}}
    torch.testing.assert_close(output(scoring(prior, causal=causal, window=window), kernel), expected, **FP32)


FINITE: list[Any] = [
    {"kind": "multiplicative", "decay": "softmax", "measure": {**GAUSS, "sigma": 0.002, "sigma_is": "per_head", "offset": 50.0}},
    {"kind": "multiplicative", "measure": {**GAUSS, "sigma": 0.002, "sigma_is": "per_head"}},
    {"kind": "multiplicative", "on": "absolute", "gamma": 1e6, "gamma_is": "learned"},
    {"kind": "multiplicative", "on": "probabilities", "gamma": 1e6, "gamma_is": "learned"},
    {"kind": "penalty", "gamma": 1e6, "gamma_is": "learned"},
    {"kind": "mixture", "gamma": 1e6, "gamma_is": "learned", "beta_is": "predicted"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("prior", "kernel"),
    [(p, name) for p in FINITE for name, kernel in TRAINING_KERNELS.items() if scoring(p).stages <= kernel.stages],
    ids=str,
)
def test_rows_without_a_key_are_zero_and_nothing_is_nan(prior: Any, kernel: str) -> None:
    """Masks come after factors: minus infinity times 0 is no number."""
    said = scoring(prior)
    leaves = [x.requires_grad_() for x in drawn()]
    positions, owners = torch.arange(TOKENS)[None], torch.zeros(2, TOKENS, dtype=torch.long)
    strangers = owners.clone()
    strangers[0, 3:5], strangers[1] = 7, 8
    with torch.no_grad():
        for name, parameter in said.terms[0].named_parameters():
            if not name.endswith("raw"):
                parameter.fill_(0.3)
    out = TRAINING_KERNELS[kernel].run(meeting(*leaves, said, Places(positions, positions, strangers, owners)))
    out.square().sum().backward()
    assert (out[0, :, 3:5] == 0).all()
    assert (out[1] == 0).all()
    assert out[0, :, 5:].abs().min() > 0
    for leaf in (*leaves, *said.terms[0].parameters()):
        assert leaf.grad.isfinite().all()


# ------------------------------------------------------------------------------------------------ hard-coded


def test_hard_coded_weights_are_a_convolution_with_a_density() -> None:
    """Without a mask a head is conv1d of its values with the density as kernel, zeros outside."""
    _, _, v = drawn()
    said = scoring({"kind": "hard_coded", "heads": [0, 2], "sigma": 1.5, "offset": [-1.0, 2.0]}, causal=False)
    found, plain = output(said), output(scoring(causal=False))
    assert torch.equal(found[:, 1], plain[:, 1])
    offsets = torch.arange(-TOKENS + 1, TOKENS).float()
    for head, centre in ((0, -1.0), (2, 2.0)):
        density = torch.distributions.Normal(centre, 1.5).log_prob(offsets).exp()
        values_CT = v[:, head].mT.reshape(-1, 1, TOKENS)
        expected = F.conv1d(values_CT, density.view(1, 1, -1), padding=TOKENS - 1).view(2, WIDTH, TOKENS).mT
        torch.testing.assert_close(found[:, head], expected, **FP32)


def test_attention_without_queries_and_keys_has_no_parameters_for_them() -> None:
    """Two matrices of four, a cache of values alone, and every parameter has a gradient."""
    declared = kinds.tiny({"position": "none", "attention": {"kind": "hard_coded", "heads": 6, "offset": [-1, 0]}})
    plain = kinds.tiny({"position": "none"})
    costs = [price(architecture, 8) for architecture in (declared, plain)]
    assert [cost.components["attention"] for cost in costs] == [2 * 2 * 24**2, 2 * 4 * 24**2]
    assert [cost.kv_elements_per_token for cost in costs] == [2 * 24, 2 * 2 * 24]
    model = build(declared)
    model(some_tokens(declared, 2, TOKENS)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_attention_without_queries_and_keys_is_a_convolution_in_every_head() -> None:
    architecture = kinds.tiny({"form": "encoder", "position": "none", "attention": {"kind": "hard_coded", "heads": 6}})
    attention = lively(architecture).blocks[0].attention
    x_BTD = torch.randn(2, TOKENS, 24, generator=torch.Generator().manual_seed(0))
    density = torch.distributions.Normal(0.0, 1.0).log_prob(torch.arange(-TOKENS + 1.0, TOKENS)).exp()
    v_BDT = attention.v(x_BTD).mT
    mixed = F.conv1d(v_BDT, density.expand(24, 1, -1), padding=TOKENS - 1, groups=24).mT
    torch.testing.assert_close(attention(x_BTD, Dense(plain_places())), attention.o(mixed), **FP32)


def test_hard_coded_rows_lose_what_the_mask_takes() -> None:
    i, j = grid()
    said = scoring({"kind": "hard_coded", "heads": [0]})
    found = weights(said)[:, 0]
    density = torch.distributions.Normal(0.0, 1.0).log_prob(j - i).exp()
    torch.testing.assert_close(found, density.masked_fill(j > i, 0.0).expand_as(found), **FP32)
    assert found.sum(-1)[0, -1] == pytest.approx(0.6995, abs=1e-3)  # (1 + 0.3989) / 2


# ------------------------------------------------------------------------------------------------ whole models


def test_blocks_may_differ_and_names_do_not_depend_on_positions() -> None:
    learned = {"kind": "penalty", "gamma_is": "per_head", "heads": [0, 3]}
    change = {"blocks": [{"at": "1", "attention": {"priors": learned}}]}
    names = {name for name, _ in build(kinds.tiny(change)).named_parameters() if "prior" in name}
    assert names == {"blocks.1.attention.priors.0.weighed.gamma.raw"}
    alibi = build(kinds.tiny(change, {"position": ["rope", "alibi"]}))
    assert names <= {name for name, _ in alibi.named_parameters()}
    assert {tuple(p.shape) for name, p in alibi.named_parameters() if name in names} == {(2,)}


def centred_before(sigma: float) -> dict[str, Any]:
    """A penalty around a predicted place before the query, of predicted width."""
    measure = {**GAUSS, "sigma": sigma, "sigma_is": "predicted", "centre": "before"}
    return {"kind": "penalty", "measure": measure, "gamma_is": "per_head"}


LONG: list[Any] = [
    {"kind": "multiplicative", "on": "absolute", "decay": "softmax", "heads": [1, 2],
     "measure": {**GAUSS, "sigma_is": "per_head", "offset_is": "predicted"}},
    {"kind": "mixture", "beta_is": "predicted", "gamma_is": "learned"},
    [{"kind": "penalty", "gamma_is": "learned"}, {"kind": "multiplicative", "on": "logits"}],
    {"kind": "hard_coded", "heads": [0]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("prior", "window"),
    [
        *((prior, window) for prior in LONG for window in (None, 40)),
        (centred_before(4.0), None),
        # A window cuts off centres 250 tokens back; at a width of 4 what it leaves scores near -2000, and fp32 has no
        # four decimals of that.
        (centred_before(16.0), 40),
    ],
    ids=str,
)
@pytest.mark.parametrize("documents", [False, True])
def test_kernels_agree_over_several_blocks_of_queries(prior: Any, window: int | None, documents: bool) -> None:
    tokens = 300
    said = scoring(*(prior if isinstance(prior, list) else [prior]), window=window)
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for built in said.terms:
            for name, parameter in built.named_parameters():
                if not name.endswith("raw"):
                    parameter.copy_(torch.randn(parameter.shape, generator=numbers))
    positions = torch.arange(tokens)[None]
    owners = (positions // 70).expand(2, -1) if documents else None
    places = Places(positions, positions, owners, owners, consecutive=True)
    cotangent = torch.randn(2, HEADS, tokens, WIDTH, generator=numbers)

    def outcome(kernel: str) -> list[Tensor]:
        leaves = [x.requires_grad_() for x in drawn(tokens=tokens)]
        out = TRAINING_KERNELS[kernel].run(meeting(*leaves, said, places))
        wanted = [*leaves, *(parameter for built in said.terms for parameter in built.parameters())]
        return [out.detach(), *torch.autograd.grad(out, wanted, cotangent)]

    expected = outcome("eager")
    others = [name for name, kernel in TRAINING_KERNELS.items() if name != "eager" and said.stages <= kernel.stages]
    assert "chunked" in others
    for name in others:
        for found, right in zip(outcome(name), expected, strict=True):
            torch.testing.assert_close(found, right, atol=2e-5 * max(1.0, float(right.abs().max())), rtol=1e-4)


def test_what_no_parameter_makes_is_computed_once_for_all_blocks() -> None:
    def key(prior: Any) -> Any:
        return term(prior).key

    assert key({"gamma": 0.5}) == key({"gamma": 0.5})
    assert key({"gamma": 0.5}) != key({"gamma": 0.4})
    assert key({"gamma": 0.5}) != key({"gamma": 0.5, "heads": [1]})
    assert key({"gamma_is": "learned"}) != key({"gamma_is": "learned"})


def test_an_architecture_takes_one_prior_or_a_list() -> None:
    one = Architecture.parse({"attention": {"priors": "penalty"}})
    assert one == Architecture.parse({"attention": {"priors": [{"kind": "penalty"}]}})
    assert Architecture.parse({"attention": {"priors": {"heads": 2}}}).attention.priors[0].heads == (2,)


@pytest.mark.parametrize("kernel", ["eager", "banded", "chunked"])
def test_a_sink_as_gpt_oss_has_it(kernel: str) -> None:
    """Hugging Face's own attention of gpt-oss, which appends the logit, drops its column and renormalises nothing."""
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    q, k, v = drawn(tokens=11)
    built = term({"kind": "sink", "logit": 0.3})
    logits = torch.linspace(-1, 2, q.shape[1])
    with torch.no_grad():
        built.logit.raw.copy_(logits)
    said = replace(scoring(), terms=(built,))
    positions = torch.arange(11)[None]
    mine = TRAINING_KERNELS[kernel].run(meeting(q, k, v, said, Places(positions, positions, consecutive=True)))
    holder = torch.nn.Module()
    holder.num_key_value_groups, holder.sinks = q.shape[1] // k.shape[1], logits
    hidden = torch.full((11, 11), float("-inf")).triu(1)[None, None]
    theirs, _ = eager_attention_forward(holder.eval(), q, k, v, hidden, scaling=said.scale)
    torch.testing.assert_close(mine, theirs.transpose(1, 2), rtol=1e-5, atol=1e-6)
