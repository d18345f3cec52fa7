"""New tokens from a model, with a KV cache."""

from isoflop.generate.engine import generate
from isoflop.generate.sample import Sampling

__all__ = ["Sampling", "generate"]
