"""Rotary frequencies for texts longer than those a model was trained on.

θ_i = base^(-2i/r) is the frequency of pair i, r the number of rotated components.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from isoflop.model.position.frequencies import geometric
from isoflop.model.slots import Scaling
from isoflop.spec import OneOrMany, SpecError

Factor = Annotated[float, Field(gt=1)]
Positive = Annotated[float, Field(gt=0)]
Length = Annotated[int, Field(ge=2)]


class Unscaled(Scaling, kind="none"):
    """Frequencies as they are.

    Paper: Su et al. 2021, arXiv 2104.09864
    """

    def frequencies(self, rotated: int, base: float) -> list[float]:
        return geometric(rotated, base)


class Linear(Scaling, kind="linear"):
    """Every frequency is divided by `factor`, which squeezes positions into the range that was trained.

    Formula: θ'_i = θ_i / factor
    Paper: Chen et al. 2023, arXiv 2306.15595
    """

    factor: Factor = 4.0

    def frequencies(self, rotated: int, base: float) -> list[float]:
        return [frequency / self.factor for frequency in geometric(rotated, base)]


class DynamicNTK(Scaling, kind="dynamic_ntk"):
    """The base grows with the length, so that slow pairs are squeezed and fast ones hardly at all.

    `longest` is the length n of the longest text the model is for, above `original_length` n_0. Hugging Face takes n from the
    text at hand, so that its cached keys and its new queries are turned by different rules; here the length is declared.

    Formula: base' = base (factor n / n_0 - factor + 1)^(r / (r - 2)), θ'_i = base'^(-2i/r)
    Paper: bloc97 and emozilla 2023; in Peng et al. 2023, arXiv 2309.00071
    """

    factor: Annotated[float, Field(ge=1)] = 2.0
    original_length: Length = 2048
    longest: Length = 4096

    @model_validator(mode="after")
    def _longer(self) -> Self:
        if self.longest <= self.original_length:
            raise SpecError.at(
                "longest",
                f"must be above original_length {self.original_length}, up to which nothing changes, came {self.longest}",
            )
        return self

    def frequencies(self, rotated: int, base: float) -> list[float]:
        stretch = self.factor * self.longest / self.original_length - self.factor + 1
        return geometric(rotated, base * stretch ** (rotated / (rotated - 2)))

    def check(self, rotated: int) -> None:
        if rotated < 4:
            raise SpecError(f"dynamic_ntk needs two pairs, one of which is slower, came {rotated} rotated components")


class YaRN(Scaling, kind="yarn"):
    """Slow pairs are squeezed by `factor`, fast ones stay, and between them is a ramp; attention is sharpened.

    A pair stays if it turns `beta_fast` times or more within `original_length`, and is squeezed in full if it turns
    `beta_slow` times or fewer. `truncate` puts the ends of the ramp on whole pairs. Turned queries and keys are multiplied by
    `attention_factor`, absent = 0.1 ln(factor) + 1. (The pair `mscale` and `mscale_all_dim` of Hugging Face is another way to
    write that factor: (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1).)

    Formula: θ'_i = (1 - γ_i) θ_i / factor + γ_i θ_i, γ_i = 1 - clip((i - low) / (high - low), 0, 1),
        low, high = r ln(original_length / (2π β)) / (2 ln base) for β = beta_fast, beta_slow
    Paper: Peng et al. 2023, arXiv 2309.00071
    """

    factor: Factor = 4.0
    original_length: Length = 4096
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = True
    attention_factor: Positive | None = None

    @model_validator(mode="after")
    def _ramp(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise SpecError.at("beta_fast", f"must be above beta_slow {self.beta_slow:g}, came {self.beta_fast:g}")
        return self

    @property
    def magnitude(self) -> float:
        return self.attention_factor or 0.1 * math.log(self.factor) + 1

    def frequencies(self, rotated: int, base: float) -> list[float]:
        low, high = (self._pair(turns, rotated, base) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotated - 1)
        high = high if high != low else high + 0.001  # a step where both ends of the ramp fall on one pair
        squeezed = [min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(rotated // 2)]
        plain = geometric(rotated, base)
        return [f * (share / self.factor + 1 - share) for f, share in zip(plain, squeezed, strict=True)]

    def _pair(self, turns: float, rotated: int, base: float) -> float:
        """The (fractional) pair that turns so many times within the original length."""
        return rotated * math.log(self.original_length / (2 * math.pi * turns)) / (2 * math.log(base))


class LongRoPE(Scaling, kind="longrope"):
    """A factor of its own for every pair, found by search: one set for texts up to `original_length`, one for longer ones.

    `longest` is the length of the longest text the model is for, and decides the set: `long_factors` where it is above
    `original_length`, else `short_factors`. (Hugging Face goes by the text at hand, and turns new queries by another set than
    cached keys once a text passes the original length.) A set is a number for each pair, or one for all. Turned queries and
    keys are multiplied by `attention_factor`, absent = sqrt(1 + ln(factor) / ln(original_length)).

    Formula: θ'_i = θ_i / λ_i
    Paper: Ding et al. 2024, arXiv 2402.13753
    """

    factor: Factor = 32.0
    original_length: Length = 4096
    longest: Length = 131072
    short_factors: OneOrMany[Positive] = (1.0,)
    long_factors: OneOrMany[Positive] = (32.0,)
    attention_factor: Positive | None = None

    @property
    def magnitude(self) -> float:
        return self.attention_factor or math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def frequencies(self, rotated: int, base: float) -> list[float]:
        chosen = self.long_factors if self.longest > self.original_length else self.short_factors
        plain = geometric(rotated, base)
        dealt = chosen * len(plain) if len(chosen) == 1 else chosen
        return [frequency / factor for frequency, factor in zip(plain, dealt, strict=True)]

    def check(self, rotated: int) -> None:
        for name in ("short_factors", "long_factors"):
            came = len(getattr(self, name))
            if came not in (1, rotated // 2):
                raise SpecError.at(name, f"must be one number, or one for each of {rotated // 2} pairs, came {came}")


class Llama3(Scaling, kind="llama3"):
    """Pairs of long wavelength are squeezed by `factor`, those of short wavelength stay, and between them it is smooth.

    Formula: θ'_i = (1 - s_i) θ_i / factor + s_i θ_i,
        s_i = clip((original_length θ_i / 2π - low) / (high - low), 0, 1), low and high the frequency factors
    Paper: Grattafiori et al. 2024 (Llama 3), arXiv 2407.21783; the formula is that of the released code of Llama 3.1
    """

    factor: Factor = 8.0
    original_length: Length = 8192
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if high <= low:
            raise SpecError.at("high_frequency_factor", f"must be above low_frequency_factor {low:g}, came {high:g}")
        return self

    def frequencies(self, rotated: int, base: float) -> list[float]:
        return [frequency * self._kept(frequency) for frequency in geometric(rotated, base)]

    def _kept(self, frequency: float) -> float:
        turns = self.original_length * frequency / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - smooth) / self.factor + smooth


class Proportional(Scaling, kind="proportional"):
    """Only the fastest pairs turn, a `fraction` of all; the rest stands still. `factor` squeezes those that turn.

    Pairs and frequencies are those of the whole rotated width r, unlike `rope.fraction`, which makes r smaller.

    Formula: θ'_i = θ_i / factor for i < fraction r / 2, else 0
    Paper: Barbero et al. 2024 (p-RoPE), arXiv 2410.06205
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    factor: Annotated[float, Field(ge=1)] = 1.0

    def turning(self, rotated: int) -> int:
        """How many pairs turn."""
        return int(self.fraction * rotated // 2)

    def frequencies(self, rotated: int, base: float) -> list[float]:
        turning = self.turning(rotated)
        plain = geometric(rotated, base)
        return [f / self.factor if pair < turning else 0.0 for pair, f in enumerate(plain)]

    def check(self, rotated: int) -> None:
        if not self.turning(rotated):
            raise SpecError.at("fraction", f"turns none of {rotated // 2} pairs, came {self.fraction:g}")
