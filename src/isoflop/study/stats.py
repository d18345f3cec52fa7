"""Statistics of a study: paired differences, correction for the number of arms, and the words a verdict may use.

Every value is a loss (lower is better) and every difference is arm minus base on the same seed, so a negative one
favours the arm. Nothing here reads files or trains: numbers in, frozen dataclasses out.

How a verdict is reached (`verdicts`), with alpha usually 0.05:

1. `failed`: fewer than two pairs, so there is no spread and nothing can be said.
2. `equivalent`: the equivalence test, Holm-corrected over the arms, has p < alpha AND the whole interval lies inside
   (-margin, margin). This comes before significance: the user declared such a difference negligible before seeing it,
   and enough seeds make any difference significant. Asking for the interval too keeps word and picture in agreement.
3. `better` / `worse`: the paired t test, Holm-corrected over the arms, has p < alpha AND the interval lies wholly on
   that side of zero AND the sign-flip test, uncorrected, has p < alpha.
4. `unresolved`: all else. It means "more seeds are needed", never "no difference".

The sign-flip test is a check of the t test's one assumption (normal noise), so it is not corrected over arms: the t test
carries the correction. Its smallest p is 2 / 2^n: six pairs are the fewest that can be called better or worse at 0.05.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import gammainc, stdtr, stdtrit

Word = Literal["better", "worse", "equivalent", "unresolved", "failed"]
"""What may be said of an arm."""

EXACT_PAIRS = 16
"""Up to this many pairs the sign-flip test enumerates every assignment of signs."""
DRAWS = 99_999
"""Random sign assignments beyond `EXACT_PAIRS`, from a generator with a fixed seed: the same data give the same p."""
MOST_SEEDS = 1_000
"""`seeds_needed` says this number for "this many or more"."""
TIE = 1e-9
"""Sums closer than this fraction of the sum of absolute differences count as equal, since subtraction rounds."""

NORMAL = np.linspace(-9, 9, 601)
"""Points of a standard normal variable at which `power` is averaged, and their weights."""
NORMAL_WEIGHTS = np.exp(-(NORMAL**2) / 2) / np.exp(-(NORMAL**2) / 2).sum()


@dataclass(frozen=True)
class Difference:
    """Arm minus base over the seeds both have. What cannot be computed from so few pairs is None.

    `low` and `high` bound the paired t interval at `confidence`; `p` is the two-sided paired t test, `p_permutation` the
    two-sided sign-flip test, `p_equivalence` the larger of the two one-sided t tests against -margin and +margin.
    `p_holm` and `p_equivalence_holm` depend on the other arms and are filled in by `verdicts`.
    """

    n: int
    """Pairs."""
    values: Mapping[int, float]
    """Difference of each paired seed, by seed."""
    unused: int
    """Seeds named by either arm that made no pair: absent from the other arm, None, or not finite."""
    margin: float
    confidence: float
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_permutation: float | None = None
    p_equivalence: float | None = None
    correlation: float | None = None
    """Pearson correlation of the two arms over seeds: what pairing gains. None below three pairs."""
    p_holm: float | None = None
    p_equivalence_holm: float | None = None

    @property
    def seeds_needed(self) -> int | None:
        """Pairs that would detect this mean at this sd with 80 % power at 1 - confidence, without correction over arms.

        Never fewer than the sign-flip check needs to pass at all (2 / 2^n below 1 - confidence); None when there is no
        spread or no difference to detect.
        """
        needed = seeds_needed(abs(self.mean) / self.sd, 1 - self.confidence) if self.mean and self.sd else None
        return None if needed is None else max(needed, math.floor(1 - math.log2(1 - self.confidence)) + 1)

    def dump(self) -> dict[str, Any]:
        """The `difference` object of results.json."""
        keys = (
            "mean",
            "sd",
            "low",
            "high",
            "p",
            "p_permutation",
            "p_holm",
            "p_equivalence",
            "seeds_needed",
            "correlation",
        )
        values = {str(seed): value for seed, value in self.values.items()}
        return {"n": self.n, "values": values, **{key: getattr(self, key) for key in keys}}


class Verdict(NamedTuple):
    """A word, and the difference it rests on with the corrected p values filled in."""

    word: Word
    difference: Difference


@dataclass(frozen=True)
class Noise:
    """Spread of one arm over seeds: the floor under which a difference of unpaired means is not worth a look."""

    arm: str
    n: int
    mean: float | None
    sd: float | None
    band: float | None
    """Two standard errors of the mean: 2 sd / sqrt(n)."""

    def dump(self) -> dict[str, Any]:
        """The `noise` object of results.json."""
        return {"arm": self.arm, "n": self.n, "mean": self.mean, "sd": self.sd, "band": self.band}


@dataclass(frozen=True)
class Ratio:
    """Cost of the arm over cost of the base, with an interval. The bounds are None when one pair gives no spread."""

    mean: float | None
    low: float | None
    high: float | None

    @classmethod
    def exact(cls, value: float) -> Ratio:
        """A ratio known without error, such as counted FLOPs."""
        return cls(value, value, value)

    def dump(self) -> dict[str, Any]:
        """The `ratio.seconds` object of results.json."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def compare(
    base: Mapping[int, float | None], arm: Mapping[int, float | None], *, margin: float, confidence: float = 0.95
) -> Difference:
    """Compare an arm with the base over the seeds for which both have a finite value.

    Args:
        base: loss by seed; None or a non-finite number stands for a run without a result.
        arm: the same for the arm.
        margin: the difference, in units of the loss, that counts as negligible.
        confidence: of the interval; 1 - confidence is also the level `seeds_needed` plans for.

    Raises:
        ValueError: the margin is not finite and positive, or the confidence is not between 0 and 1.
    """
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin must be finite and above 0, got {margin}; say which difference of loss is negligible")
    _check_confidence(confidence)
    pairs = _pairs(base, arm)
    values = {seed: of_arm - of_base for seed, (of_base, of_arm) in pairs.items()}
    unused = len(base.keys() | arm.keys()) - len(pairs)
    bare = Difference(n=len(pairs), values=values, unused=unused, margin=margin, confidence=confidence)
    differences = np.array(list(values.values()))
    moments = _moments(differences)
    if moments.sd is None:
        return replace(bare, mean=moments.mean if moments.n else None)
    mean, degrees, error = moments.mean, moments.n - 1, moments.error
    low, high = _interval(moments, confidence)
    # The tests against either margin; each rejects "the difference is at least this large".
    above, below = _t(mean + margin, error), _t(mean - margin, error)
    return replace(
        bare,
        mean=mean,
        sd=moments.sd,
        low=low,
        high=high,
        p=2 * float(stdtr(degrees, -abs(_t(mean, error)))),
        p_permutation=sign_flip(differences),
        p_equivalence=float(max(stdtr(degrees, -above), stdtr(degrees, below))),
        correlation=_correlation(*np.array(list(pairs.values())).T),
    )


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided sign-flip permutation p of the mean: the share of sign assignments with |sum| at least the observed.

    Exact over all 2^n assignments up to `EXACT_PAIRS`; beyond, (1 + hits) / (1 + draws) over `DRAWS` random ones from a
    fixed seed, which is a valid p value for any number of draws. Assignments that tie with the observed one count.
    """
    values = np.asarray(differences, dtype=float)
    reached = abs(values.sum()) - TIE * np.abs(values).sum()
    if len(values) <= EXACT_PAIRS:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate((sums + value, sums - value))
        return float(np.mean(np.abs(sums) >= reached))
    generator, sums = np.random.default_rng(0), np.zeros(DRAWS)
    for value in values:
        sums += np.where(generator.random(DRAWS) < 0.5, value, -value)
    return float((1 + np.sum(np.abs(sums) >= reached)) / (1 + DRAWS))


def power(effect: float, n: int, alpha: float = 0.05) -> float:
    """Power of the two-sided paired t test with n pairs when |mean| / sd of the differences is `effect`.

    Formula: P(|T| > t) for T noncentral t with k = n - 1 degrees and noncentrality c = effect sqrt(n), t the critical
    value. Given the normal part z this is P(chi2_k < k ((z + c) / t)^2), which is then averaged over z by the trapezoidal
    rule: scipy's own noncentral t is NaN for some effects of everyday size.
    """
    degrees, critical = n - 1, -stdtrit(n - 1, alpha / 2)
    spread = ((NORMAL + effect * math.sqrt(n)) / critical) ** 2
    return float(np.sum(NORMAL_WEIGHTS * gammainc(degrees / 2, degrees * spread / 2)))


def seeds_needed(effect: float, alpha: float = 0.05, target: float = 0.8) -> int | None:
    """Fewest pairs with which the paired t test reaches the target power; at most `MOST_SEEDS`; None without an effect."""
    if not (math.isfinite(effect) and effect > 0):
        return None
    numbers = range(2, MOST_SEEDS)
    return 2 + bisect_left(numbers, target, key=lambda n: power(effect, n, alpha))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p values, in the order given. None stays None and does not count as a test.

    Formula: sorted p_(1) <= ... <= p_(m) become max over j <= i of min(1, (m - j + 1) p_(j)).
    Paper: Holm 1979, A simple sequentially rejective multiple test procedure.

    Raises:
        ValueError: a p value outside [0, 1].
    """
    tested = {index: p for index, p in enumerate(ps) if p is not None}
    for p in tested.values():
        if not 0 <= p <= 1:
            raise ValueError(f"a p value must lie in [0, 1], got {p}; use None for a test that was not made")
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(tested, key=tested.__getitem__)):
        largest = max(largest, min(1.0, (len(tested) - rank) * tested[index]))
        adjusted[index] = largest
    return adjusted


def verdicts(differences: Sequence[Difference], alpha: float = 0.05) -> tuple[Verdict, ...]:
    """The word for every arm of one study (without the base), in the order given; the module says how each is reached.

    Significance and equivalence are each corrected over the arms by Holm, so the chance that a study of arms that are
    all alike calls any of them better or worse is at most alpha, and so is that of any wrong `equivalent`. Arms
    without two pairs are `failed` and do not count in the correction.
    """
    p_holm = holm([difference.p for difference in differences])
    p_equivalence_holm = holm([difference.p_equivalence for difference in differences])
    corrected = [
        replace(difference, p_holm=p, p_equivalence_holm=p_equivalence)
        for difference, p, p_equivalence in zip(differences, p_holm, p_equivalence_holm, strict=True)
    ]
    return tuple(Verdict(_word(difference, alpha), difference) for difference in corrected)


def noise(values: Iterable[float | None], arm: str = "base") -> Noise:
    """Noise floor of one arm from its loss on every seed; None and non-finite values are left out and not counted."""
    moments = _moments(np.array([value for value in values if value is not None and math.isfinite(value)]))
    mean = moments.mean if moments.n else None
    return Noise(arm, moments.n, mean, moments.sd, None if moments.sd is None else 2 * moments.error)


def ratio_interval(
    base: Mapping[int, float | None], arm: Mapping[int, float | None], confidence: float = 0.95
) -> Ratio:
    """Geometric mean of arm / base over paired seeds, with a t interval in logarithms.

    Logarithms make the ratio symmetric: twice as slow and twice as fast are equally far from 1. Only seeds with a
    positive finite value in both are used; one pair gives a mean without bounds, none gives nothing.

    Raises:
        ValueError: the confidence is not between 0 and 1.
    """
    _check_confidence(confidence)
    pairs = _pairs(base, arm, above=0.0)
    moments = _moments(np.array([math.log(of_arm / of_base) for of_base, of_arm in pairs.values()]))
    if moments.sd is None:
        return Ratio(math.exp(moments.mean) if moments.n else None, None, None)
    low, high = _interval(moments, confidence)
    return Ratio(math.exp(moments.mean), math.exp(low), math.exp(high))


def axes(word: Word, *, flops: Ratio, seconds: Ratio, tolerance: float = 0.02) -> dict[str, Word]:
    """The verdict at equal steps, tokens, FLOPs and seconds, by dominance.

    The runs have equal steps and tokens, so there the verdict stands. On an axis where the arm costs `ratio` times the
    base, `better` stands if the arm is no dearer and `worse` if it is no cheaper, within the tolerance; `equivalent`
    stands at equal cost, becomes `better` when the arm is surely cheaper (the same loss for less) and `worse` when it
    is surely dearer. What the runs do not dominate would need a run at equal cost, and is `unresolved`.
    """
    return {
        "steps": word,
        "tokens": word,
        "flops": _at_equal_cost(word, flops, tolerance),
        "seconds": _at_equal_cost(word, seconds, tolerance),
    }


class _Moments(NamedTuple):
    """Sample size, mean (0 when empty), sd with n - 1 (None below two values), standard error of the mean."""

    n: int
    mean: float
    sd: float | None
    error: float


def _moments(values: np.ndarray) -> _Moments:
    n = len(values)
    if n == 0 or np.ptp(values) == 0:
        # Summing equal numbers rounds, and would give them a spread they do not have.
        return _Moments(n, float(values[0]) if n else 0.0, 0.0 if n > 1 else None, 0.0)
    sd = float(np.std(values, ddof=1))
    return _Moments(n, float(np.mean(values)), sd, sd / math.sqrt(n))


def _interval(moments: _Moments, confidence: float) -> tuple[float, float]:
    """The t interval of the mean; a point when there is no spread."""
    half = moments.error * float(stdtrit(moments.n - 1, (1 + confidence) / 2))
    return moments.mean - half, moments.mean + half


def _t(distance: float, error: float) -> float:
    """Student's t, with its limit when there is no spread: nothing is 0 away, anything else is infinitely far."""
    if error == 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / error


def _correlation(base: np.ndarray, arm: np.ndarray) -> float | None:
    """Pearson's rho; None when an arm is constant, or below three pairs, where it can only be -1 or 1."""
    if len(base) < 3 or np.ptp(base) == 0 or np.ptp(arm) == 0:
        return None
    return float(np.clip(np.corrcoef(base, arm)[0, 1], -1, 1))


def _word(difference: Difference, alpha: float) -> Word:
    """The rule of the module's docstring, for one corrected difference."""
    low, high, margin = difference.low, difference.high, difference.margin
    p, p_check, p_equivalence = difference.p_holm, difference.p_permutation, difference.p_equivalence_holm
    if low is None or high is None or p is None or p_check is None or p_equivalence is None:
        return "failed"
    if p_equivalence < alpha and -margin < low and high < margin:
        return "equivalent"
    if max(p, p_check) >= alpha or low <= 0 <= high:
        return "unresolved"
    return "better" if high < 0 else "worse"


def _at_equal_cost(word: Word, ratio: Ratio, tolerance: float) -> Word:
    if word == "failed":
        return "failed"
    if ratio.low is None or ratio.high is None:
        return "unresolved"
    floor, ceiling = 1 - tolerance, 1 + tolerance
    conclusions: dict[Word, tuple[tuple[Word, bool], ...]] = {
        "better": (("better", ratio.high <= ceiling),),
        "worse": (("worse", ratio.low >= floor),),
        "equivalent": (
            ("equivalent", floor <= ratio.low and ratio.high <= ceiling),
            ("better", ratio.high < floor),
            ("worse", ratio.low > ceiling),
        ),
    }
    reached: list[Word] = [conclusion for conclusion, holds in conclusions.get(word, ()) if holds]
    return reached[0] if reached else "unresolved"


def _pairs(
    base: Mapping[int, float | None], arm: Mapping[int, float | None], above: float = -math.inf
) -> dict[int, tuple[float, float]]:
    """(base, arm) of every seed whose values are both finite and above the bound, in the order of the seeds."""
    pairs: dict[int, tuple[float, float]] = {}
    for seed in sorted(base.keys() & arm.keys()):
        of_base, of_arm = base[seed], arm[seed]
        if of_base is None or of_arm is None:
            continue
        if math.isfinite(of_base) and math.isfinite(of_arm) and min(of_base, of_arm) > above:
            pairs[seed] = (float(of_base), float(of_arm))
    return pairs


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}; 0.95 is usual")
