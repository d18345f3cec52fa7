"""Attention sublayers: projections and heads. What happens between queries and keys is `kernel`; terms are handed in."""

from isoflop.model.attention.hard_coded import HardCodedAttention, ValuesAlone
from isoflop.model.attention.latent import CrossLatentAttention, Latent, SelfLatentAttention
from isoflop.model.attention.multi_head import CrossAttention, MultiHead, SelfAttention

__all__ = [
    "CrossAttention",
    "CrossLatentAttention",
    "HardCodedAttention",
    "Latent",
    "MultiHead",
    "SelfAttention",
    "SelfLatentAttention",
    "ValuesAlone",
]
