"""Statistics against scipy's tests, brute force, published numbers, and simulated studies with a known truth."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from isoflop.study.stats import (
    DRAWS,
    MOST_SEEDS,
    Difference,
    Ratio,
    axes,
    compare,
    holm,
    noise,
    power,
    ratio_interval,
    seeds_needed,
    sign_flip,
    verdicts,
)

# Ten seeds of a two-layer byte model on one corpus: mean and sd of the base, correlation with an arm.
BASE_MEAN, BASE_SD, CORRELATION = 2.3818, 0.0353, 0.8


def paired_noise(rng: np.random.Generator, seeds: int, arms: int, shift: float = 0.0) -> list[dict[int, float]]:
    """The base, then arms that correlate with it and differ from it by `shift` in truth."""
    base = rng.standard_normal(seeds)
    own = rng.standard_normal((arms, seeds))
    noise_of_arms = CORRELATION * base + math.sqrt(1 - CORRELATION**2) * own
    rows = np.vstack([base, noise_of_arms + shift / BASE_SD])
    return [dict(enumerate((BASE_MEAN + BASE_SD * row).tolist())) for row in rows]


def with_differences(values: list[float], margin: float = 0.01, confidence: float = 0.95) -> Difference:
    return compare(
        dict.fromkeys(range(len(values)), 0.0), dict(enumerate(values)), margin=margin, confidence=confidence
    )


def words(*differences: Difference, alpha: float = 0.05) -> list[str]:
    return [verdict.word for verdict in verdicts(differences, alpha)]


# --- compare, against scipy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 6, 10])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_t_test_interval_equivalence_and_correlation_equal_scipy(n: int, confidence: float) -> None:
    base, arm = paired_noise(np.random.default_rng(n), n, 1, shift=0.01)
    x, y = np.array(list(base.values())), np.array(list(arm.values()))
    margin = 0.03
    got = compare(base, arm, margin=margin, confidence=confidence)
    student = oracle.ttest_rel(y, x)
    interval = student.confidence_interval(confidence)
    one_sided = [
        oracle.ttest_1samp(y - x, -margin, alternative="greater").pvalue,
        oracle.ttest_1samp(y - x, margin, alternative="less").pvalue,
    ]
    assert got.n == n
    assert got.unused == 0
    assert got.values == pytest.approx(dict(enumerate(y - x)), abs=1e-15)
    assert got.mean == pytest.approx(y.mean() - x.mean(), rel=1e-9)
    assert got.sd == pytest.approx(math.sqrt(sum((y - x - (y - x).mean()) ** 2) / (n - 1)), rel=1e-9)
    assert got.p == pytest.approx(student.pvalue, rel=1e-9)
    assert (got.low, got.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert got.p_equivalence == pytest.approx(max(one_sided), rel=1e-9)
    if n > 2:
        assert got.correlation == pytest.approx(oracle.pearsonr(x, y).statistic, rel=1e-9)


@pytest.mark.parametrize("n", [2, 5, 6, 10, 12])
@pytest.mark.parametrize("shift", [0.0, -0.8])
def test_sign_flip_equals_exact_enumeration_by_scipy(n: int, shift: float) -> None:
    differences = np.random.default_rng(n).standard_normal(n) + shift
    expected = oracle.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(differences) == pytest.approx(expected.pvalue, abs=1e-12)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_sign_flip_counts_ties_exactly(tenths: list[int]) -> None:
    # Tenths are inexact in binary, so sums that are equal on paper differ in the last bit; integers do not.
    flipped = [abs(sum(map(int.__mul__, signs, tenths))) for signs in itertools.product((1, -1), repeat=len(tenths))]
    expected = sum(value >= abs(sum(tenths)) for value in flipped) / len(flipped)
    assert sign_flip([tenth * 0.1 for tenth in tenths]) == expected


def test_smallest_sign_flip_p_needs_six_pairs_for_five_percent() -> None:
    assert [sign_flip([-1.0 - 0.1 * i for i in range(n)]) for n in (5, 6, 10)] == [2 / 32, 2 / 64, 2 / 1024]


def test_sign_flip_beyond_enumeration_is_repeatable_and_near_the_t_test() -> None:
    differences = np.random.default_rng(3).standard_normal(40) + 0.25
    p = sign_flip(differences)
    assert p == sign_flip(differences)
    expected = oracle.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=DRAWS, rng=np.random.default_rng(9)
    ).pvalue
    assert p == pytest.approx(expected, abs=5 * math.sqrt(2 * expected * (1 - expected) / DRAWS))
    assert sign_flip([1.0] * 40) == 1 / (1 + DRAWS)
    assert sign_flip([0.0] * 40) == 1


# --- compare, degenerate ------------------------------------------------------------------------------------------


def test_no_pair_and_one_pair_have_no_statistics_and_fail() -> None:
    none = compare({0: 1.0, 1: 2.0}, {2: 1.0}, margin=0.1)
    one = compare({0: 1.0, 1: 2.0}, {1: 2.5}, margin=0.1)
    assert (none.n, none.values, none.unused, none.mean) == (0, {}, 3, None)
    assert (one.n, one.values, one.unused, one.mean) == (1, {1: 0.5}, 1, 0.5)
    for difference in (none, one):
        dump = difference.dump()
        assert {key for key, value in dump.items() if value is not None} <= {"n", "values", "mean"}
    assert words(none, one) == ["failed", "failed"]


@pytest.mark.parametrize("n", [2, 6, 20])
def test_an_arm_equal_to_the_base_is_equivalent(n: int) -> None:
    base, _ = paired_noise(np.random.default_rng(0), n, 1)
    same = compare(base, dict(base), margin=1e-9)
    assert (same.mean, same.sd, same.low, same.high) == (0, 0, 0, 0)
    assert (same.p, same.p_permutation, same.p_equivalence, same.seeds_needed) == (1, 1, 0, None)
    assert words(same) == ["equivalent"]


@pytest.mark.parametrize(("n", "word"), [(2, "unresolved"), (5, "unresolved"), (6, "better"), (10, "better")])
def test_identical_differences_have_a_point_interval_and_obey_the_sign_flip_check(n: int, word: str) -> None:
    difference = with_differences([-0.1] * n, margin=0.01)
    assert (difference.mean, difference.sd, difference.low, difference.high) == (-0.1, 0, -0.1, -0.1)
    assert (difference.p, difference.p_permutation, difference.p_equivalence) == (0, 2 / 2**n, 1)
    assert (difference.seeds_needed, difference.correlation) == (None, None)
    assert words(difference) == [word]


def test_values_that_are_missing_or_not_finite_are_never_used_and_are_counted() -> None:
    base = {0: 1.0, 1: 2.0, 2: 3.0, 3: math.nan, 4: 5.0, 6: 1.0}
    arm = {0: 1.5, 1: None, 2: math.inf, 3: 1.0, 4: 5.25, 7: 2.0}
    got = compare(base, arm, margin=0.1)
    assert got.values == {0: 0.5, 4: 0.25}
    assert (got.n, got.unused) == (2, 5)
    clean = compare({0: 1.0, 4: 5.0}, {0: 1.5, 4: 5.25}, margin=0.1)
    assert replace(got, unused=0) == clean


def test_values_come_in_the_order_of_the_seeds_whatever_order_runs_ended_in() -> None:
    # 1000 hashes before 3 in a small set.
    base, arm = {1000: 1.0, 3: 1.0, 20: 1.0}, {20: 3.0, 1000: 4.0, 3: 2.0}
    assert list(compare(base, arm, margin=1).values.items()) == [(3, 1.0), (20, 2.0), (1000, 3.0)]


def test_correlation_needs_three_pairs_and_spread() -> None:
    assert compare({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.5}, margin=1).correlation is None
    assert compare({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 2.5, 2: 3.0}, margin=1).correlation is None


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin must be finite and above 0"):
        compare({}, {}, margin=margin)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_a_confidence_outside_0_and_1_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        compare({}, {}, margin=1, confidence=confidence)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        ratio_interval({}, {}, confidence=confidence)


@given(st.lists(st.tuples(st.floats(1, 5), st.floats(1, 5)), min_size=2, max_size=9))
def test_swapping_base_and_arm_turns_every_sign_and_no_p(pairs: list[tuple[float, float]]) -> None:
    base, arm = (dict(enumerate(column)) for column in zip(*pairs, strict=True))
    there, back = compare(base, arm, margin=0.1), compare(arm, base, margin=0.1)
    assert (back.mean, back.low, back.high) == (-there.mean, -there.high, -there.low)
    for key in ("sd", "p", "p_permutation", "p_equivalence", "seeds_needed"):
        assert getattr(back, key) == getattr(there, key)
    opposite = {"better": "worse", "worse": "better"}
    assert words(back) == [opposite.get(word, word) for word in words(there)]


# --- power --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "n", "alpha"), [(1.0, 10, 0.05), (0.3, 40, 0.05), (2.5, 5, 0.05 / 12), (30, 2, 0.05)]
)
def test_power_equals_the_normal_probability_integrated_over_the_sample_variance(
    effect: float, n: int, alpha: float
) -> None:
    critical = oracle.t.isf(alpha / 2, n - 1)
    shares = (np.arange(200_000) + 0.5) / 200_000
    bars = critical * np.sqrt(oracle.chi2.ppf(shares, n - 1) / (n - 1))
    centre = effect * math.sqrt(n)
    expected = np.mean(oracle.norm.sf(bars - centre) + oracle.norm.cdf(-bars - centre))
    assert power(effect, n, alpha) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("alpha", "expected"), [(0.05, [6, 4, 4, 3, 3]), (0.05 / 12, [10, 7, 6, 5, 4])])
def test_seeds_needed_for_effects_in_units_of_seed_noise_at_correlation_0_8(alpha: float, expected: list[int]) -> None:
    sd_of_difference = math.sqrt(2 * (1 - 0.8))
    assert [seeds_needed(effect / sd_of_difference, alpha) for effect in (1, 1.5, 2, 3, 5)] == expected


@pytest.mark.parametrize("effect", [0.4, 0.7, 1.2])
def test_seeds_needed_is_the_fewest_that_reach_80_percent_in_simulation(effect: float) -> None:
    rng, studies = np.random.default_rng(11), 20_000
    n = seeds_needed(effect)
    assert n is not None

    def detected(pairs: int) -> float:
        return float(
            np.mean(oracle.ttest_1samp(rng.standard_normal((studies, pairs)) + effect, 0, axis=1).pvalue < 0.05)
        )

    sampling = 3 * math.sqrt(0.8 * 0.2 / studies)
    assert detected(n) > 0.8 - sampling
    assert detected(n - 1) < 0.8 + sampling


def test_seeds_needed_is_capped_and_absent_without_an_effect() -> None:
    assert seeds_needed(1e-6) == MOST_SEEDS
    assert seeds_needed(0.0) is None
    assert seeds_needed(math.nan) is None


def test_seeds_needed_of_a_comparison_uses_its_effect_and_never_promises_fewer_than_the_check_needs() -> None:
    weak = with_differences([0.5, -0.2, 0.4, 0.1, -0.3, 0.6])
    assert weak.seeds_needed == seeds_needed(weak.mean / weak.sd)
    assert weak.seeds_needed > 6
    strong = [1.0, 1.01, 0.99]
    assert with_differences(strong).seeds_needed == 6
    assert with_differences(strong, confidence=0.99).seeds_needed == 8
    # At exactly 2 / 2^6 the check does not pass, because p must be below alpha.
    assert with_differences(strong, confidence=1 - 2 / 2**6).seeds_needed == 7


# --- Holm ---------------------------------------------------------------------------------------------------------


def test_holm_on_published_examples() -> None:
    # Four hypotheses, the standard textbook example; then two arms of a study where the first loses its 0.036.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.036, 0.38]) == pytest.approx([0.072, 0.38])


def test_holm_keeps_none_and_does_not_count_it() -> None:
    assert holm([None, 0.02, None, 0.03]) == pytest.approx([None, 0.04, None, 0.04])
    assert holm([None]) == [None]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(ps: list[float]) -> None:
    # Definition by closure: reject i when Bonferroni rejects every set of hypotheses that holds i.
    everyone = range(len(ps))
    families = [set(family) for size in everyone for family in itertools.combinations(everyone, size + 1)]
    expected = [
        max(min(1.0, len(family) * min(ps[j] for j in family)) for family in families if i in family) for i in everyone
    ]
    adjusted = holm(ps)
    assert adjusted == pytest.approx(expected, abs=1e-15)
    order = sorted(everyone, key=ps.__getitem__)
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_holm_refuses_what_is_no_probability(p: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        holm([0.5, p])


# --- verdicts -----------------------------------------------------------------------------------------------------

CLEAR = [-0.10, -0.11, -0.09, -0.12, -0.10, -0.08]


def test_words_for_clear_cases() -> None:
    worse = [-value for value in CLEAR]
    unclear = [0.1, -0.1, 0.2, -0.15, 0.05, -0.02]
    near = [0.001, -0.001, 0.002, -0.002, 0.001, 0.0]
    cases = [with_differences(values) for values in (CLEAR, worse, unclear, near, [0.1])]
    assert words(*cases) == ["better", "worse", "unresolved", "equivalent", "failed"]


def test_a_significant_difference_inside_the_margin_is_equivalent_and_outside_is_not() -> None:
    assert words(with_differences(CLEAR, margin=0.2)) == ["equivalent"]
    interval = with_differences(CLEAR)
    assert words(with_differences(CLEAR, margin=-interval.low - 1e-6)) == ["better"]
    assert words(with_differences(CLEAR, margin=-interval.low + 1e-6)) == ["equivalent"]


def test_equivalence_asks_for_the_whole_interval_and_not_only_for_the_one_sided_tests() -> None:
    values = [0.3, -0.25, 0.2, -0.1, 0.28, -0.15, 0.05, 0.1]
    reach = with_differences(values).high
    close = with_differences(values, margin=reach * 0.95)
    assert close.p_equivalence < 0.05
    assert words(close) == ["unresolved"]
    assert words(with_differences(values, margin=reach * 1.05)) == ["equivalent"]


def test_both_corrections_run_over_the_arms_of_the_study() -> None:
    lucky = with_differences([-0.05, -0.02, -0.11, -0.01, -0.09, -0.005])
    assert 0.025 < lucky.p < 0.05
    unclear = with_differences([0.1, -0.1, 0.2, -0.15, 0.05, -0.02])
    first, second = verdicts([lucky, unclear])
    assert words(lucky) == ["better"]
    assert first.word == "unresolved"
    assert first.difference.p_holm == pytest.approx(2 * lucky.p)
    assert second.difference.p_holm == pytest.approx(unclear.p)
    assert first.difference == replace(lucky, p_holm=2 * lucky.p, p_equivalence_holm=1.0)
    # A margin just past the interval: p_equivalence is just under 0.025, so three arms push it past 0.05.
    alike = with_differences([0.1, -0.1, 0.2, -0.15, 0.05, -0.02], margin=0.16)
    assert 0.05 / 3 < alike.p_equivalence < 0.025
    assert words(alike) == ["equivalent"]
    assert words(alike, lucky, lucky)[0] == "unresolved"


def test_failed_arms_do_not_count_in_the_correction() -> None:
    lucky = with_differences([-0.05, -0.02, -0.11, -0.01, -0.09, -0.005])
    assert words(lucky, with_differences([]), with_differences([1.0])) == ["better", "failed", "failed"]


def test_the_sign_flip_test_can_veto_the_t_test() -> None:
    five = with_differences([-0.1, -0.11, -0.09, -0.12, -0.1])
    assert five.p < 0.001
    assert five.p_permutation == 2 / 32
    assert words(five) == ["unresolved"]
    # At a tenth, five pairs are enough: 2/32 < 0.1.
    assert words(five, alpha=0.1) == ["better"]


def test_the_interval_can_veto_when_its_confidence_is_stricter_than_alpha() -> None:
    values = [-0.05, -0.02, -0.11, -0.01, -0.09, -0.005]
    strict = with_differences(values, confidence=0.99)
    assert strict.high > 0
    assert words(with_differences(values), strict) == ["unresolved", "unresolved"]
    assert words(strict) == ["unresolved"]
    assert words(with_differences(values)) == ["better"]


# --- simulated studies --------------------------------------------------------------------------------------------


def test_studies_of_equal_arms_are_wrong_no_more_often_than_they_claim() -> None:
    rng, studies, arms, seeds = np.random.default_rng(2024), 1500, 5, 10
    single_t = single_flip = any_raw = any_word = 0
    for _ in range(studies):
        base, *others = paired_noise(rng, seeds, arms)
        # A margin of almost nothing, so that no false alarm hides behind `equivalent`.
        differences = [compare(base, other, margin=1e-9) for other in others]
        single_t += differences[0].p < 0.05
        single_flip += differences[0].p_permutation < 0.05
        any_raw += any(difference.p < 0.05 for difference in differences)
        any_word += bool({"better", "worse"} & set(words(*differences)))
    sampling = 3 * math.sqrt(0.05 * 0.95 / studies)
    assert single_t / studies == pytest.approx(0.05, abs=sampling)
    assert single_flip / studies == pytest.approx(0.05, abs=sampling)
    assert any_word / studies <= 0.05 + sampling
    # Uncorrected, about a fifth of such studies would report a finding: the correction is what makes the line above hold.
    assert any_raw / studies > 0.12


def test_on_the_stored_noise_of_real_runs_equal_arms_are_told_apart_as_rarely_as_claimed() -> None:
    """A/A studies of six seeds, each arm drawn from other seeds of one architecture: nothing differs but chance."""
    stored = json.loads((Path(__file__).parent / "seed_noise.json").read_text())["values"]
    values = np.array(list(stored.values()))
    rng, studies, arms, seeds = np.random.default_rng(11), 2000, 5, 6
    single = any_word = 0
    for _ in range(studies):
        base, *others = (
            dict(enumerate(row)) for row in rng.permutation(values)[: seeds * (arms + 1)].reshape(-1, seeds)
        )
        differences = [compare(base, other, margin=1e-9) for other in others]
        single += differences[0].p < 0.05
        any_word += bool({"better", "worse"} & set(words(*differences)))
    sampling = 3 * math.sqrt(0.05 * 0.95 / studies)
    assert single / studies == pytest.approx(0.05, abs=sampling)
    assert any_word / studies <= 0.05 + sampling


def test_arms_that_lie_on_the_margin_are_called_equivalent_no_more_often_than_claimed() -> None:
    rng, studies, margin = np.random.default_rng(7), 1000, 0.01 * BASE_MEAN
    wrong = single = 0
    for _ in range(studies):
        base, *others = paired_noise(rng, 10, 3, shift=margin)
        differences = [compare(base, other, margin=margin) for other in others]
        single += differences[0].p_equivalence < 0.05
        wrong += "equivalent" in words(*differences)
    sampling = 3 * math.sqrt(0.05 * 0.95 / studies)
    assert single / studies == pytest.approx(0.05, abs=sampling)
    assert wrong / studies <= 0.05 + sampling


def test_real_differences_get_the_right_word() -> None:
    rng, studies, margin = np.random.default_rng(5), 200, 0.01 * BASE_MEAN
    tally = {"better": 0, "worse": 0, "equivalent": 0, "unresolved": 0}
    for _ in range(studies):
        base, better = paired_noise(rng, 10, 1, shift=-3 * margin)
        tally[words(compare(base, better, margin=margin))[0]] += 1
    assert tally["better"] > 0.99 * studies
    assert tally["worse"] == tally["equivalent"] == 0


# --- noise --------------------------------------------------------------------------------------------------------


def test_noise_is_two_standard_errors_of_the_usable_values() -> None:
    got = noise([1.0, 2.0, None, 4.0, math.nan, 5.0], arm="control")
    assert got.dump() == {
        "arm": "control",
        "n": 4,
        "mean": 3.0,
        "sd": pytest.approx(oracle.tstd([1, 2, 4, 5])),
        "band": pytest.approx(2 * oracle.sem([1, 2, 4, 5])),
    }


def test_noise_of_one_value_and_of_none_is_unknown() -> None:
    assert noise([3.0]).dump() == {"arm": "base", "n": 1, "mean": 3.0, "sd": None, "band": None}
    assert noise([math.inf]).dump() == {"arm": "base", "n": 0, "mean": None, "sd": None, "band": None}
    assert noise([0.1] * 6).dump() == {"arm": "base", "n": 6, "mean": 0.1, "sd": 0.0, "band": 0.0}


# --- ratios and axes ----------------------------------------------------------------------------------------------


def test_ratio_is_the_geometric_mean_of_paired_ratios_with_a_t_interval_in_logs() -> None:
    base = {0: 1.0, 1: 2.0, 2: 1.5, 3: 0.5, 9: 1.0}
    arm = {0: 1.1, 1: 2.5, 2: 1.4, 3: 0.6, 8: 1.0}
    ratios = np.array([1.1, 1.25, 1.4 / 1.5, 1.2])
    interval = oracle.ttest_1samp(np.log(ratios), 0).confidence_interval(0.9)
    got = ratio_interval(base, arm, confidence=0.9)
    assert got.mean == pytest.approx(oracle.gmean(ratios), rel=1e-12)
    assert (got.low, got.high) == pytest.approx(np.exp(list(interval)), rel=1e-9)
    turned = ratio_interval(arm, base, confidence=0.9)
    assert (turned.low, turned.high) == pytest.approx((1 / got.high, 1 / got.low), rel=1e-12)


def test_ratio_uses_only_positive_finite_pairs() -> None:
    assert ratio_interval({0: 1.0, 1: 0.0, 2: 1.0, 3: None}, {0: 2.0, 1: 1.0, 2: math.nan, 3: 1.0}) == Ratio(
        2, None, None
    )
    assert ratio_interval({0: 1.0}, {1: 1.0}) == Ratio(None, None, None)
    assert ratio_interval({0: 1.0, 1: 2.0}, {0: 2.0, 1: 4.0}) == Ratio(2, 2, 2)


@pytest.mark.parametrize(
    ("word", "low", "high", "expected"),
    [
        ("better", 0.50, 0.60, "better"),
        ("better", 0.50, 1.02, "better"),
        ("better", 0.90, 1.03, "unresolved"),
        ("better", 1.10, 1.20, "unresolved"),
        ("worse", 1.50, 1.60, "worse"),
        ("worse", 0.98, 1.60, "worse"),
        ("worse", 0.97, 1.10, "unresolved"),
        ("worse", 0.50, 0.60, "unresolved"),
        ("equivalent", 0.98, 1.02, "equivalent"),
        ("equivalent", 0.90, 0.97, "better"),
        ("equivalent", 1.03, 1.10, "worse"),
        ("equivalent", 0.90, 0.99, "unresolved"),
        ("equivalent", 1.01, 1.03, "unresolved"),
        ("unresolved", 0.50, 0.60, "unresolved"),
        ("unresolved", 1.00, 1.00, "unresolved"),
        ("failed", 0.50, 0.60, "failed"),
    ],
)
def test_axes_by_dominance(word, low: float, high: float, expected: str) -> None:
    same, stands = Ratio.exact(1.0), dict.fromkeys(("steps", "tokens", "flops", "seconds"), word)
    uncertain = Ratio((low + high) / 2, low, high)
    assert axes(word, flops=same, seconds=uncertain) == {**stands, "seconds": expected}
    assert axes(word, flops=uncertain, seconds=same) == {**stands, "flops": expected}


def test_axes_without_an_interval_are_unresolved_and_the_tolerance_counts() -> None:
    unknown, dearer = Ratio(1.0, None, None), Ratio.exact(1.04)
    assert axes("better", flops=dearer, seconds=unknown)["seconds"] == "unresolved"
    assert axes("failed", flops=dearer, seconds=unknown)["seconds"] == "failed"
    assert axes("better", flops=dearer, seconds=unknown)["flops"] == "unresolved"
    assert axes("better", flops=dearer, seconds=unknown, tolerance=0.05)["flops"] == "better"


# --- what is written ----------------------------------------------------------------------------------------------


def test_dumps_have_the_keys_of_results_json_and_are_strict_json() -> None:
    base, arm = paired_noise(np.random.default_rng(1), 6, 1, shift=-0.02)
    (verdict,) = verdicts([compare(base, arm, margin=0.02)])
    dump = verdict.difference.dump()
    assert list(dump) == [
        "n", "values", "mean", "sd", "low", "high", "p", "p_permutation", "p_holm", "p_equivalence", "seeds_needed",
        "correlation",
    ]  # fmt: skip
    assert json.loads(json.dumps(dump, allow_nan=False)) == dump
    assert dump["values"] == {str(seed): arm[seed] - base[seed] for seed in range(6)}
    assert dump["p_holm"] == dump["p"] == verdict.difference.p
    assert compare(base, arm, margin=0.02).dump()["p_holm"] is None
    assert Ratio(1.05, 1.01, 1.09).dump() == {"mean": 1.05, "low": 1.01, "high": 1.09}
    for written in (compare(base, {}, margin=1).dump(), noise(base.values()).dump(), ratio_interval(base, arm).dump()):
        assert json.loads(json.dumps(written, allow_nan=False)) == written
