"""How a model knows where a token stands."""

from isoflop.model.position.alibi import ALiBi, geometric_slopes, paper_slopes
from isoflop.model.position.embed import Learned, Nothing, Sinusoidal
from isoflop.model.position.frequencies import angles
from isoflop.model.position.relative import Relative
from isoflop.model.position.rope import RoPE
from isoflop.model.position.scaling import DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Unscaled, YaRN
from isoflop.model.position.t5 import T5
from isoflop.model.position.transformer_xl import TransformerXL

__all__ = [
    "T5",
    "ALiBi",
    "DynamicNTK",
    "Learned",
    "Linear",
    "Llama3",
    "LongRoPE",
    "Nothing",
    "Proportional",
    "Relative",
    "RoPE",
    "Sinusoidal",
    "TransformerXL",
    "Unscaled",
    "YaRN",
    "angles",
    "geometric_slopes",
    "paper_slopes",
]
