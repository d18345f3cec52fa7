"""What is declared and how it computes. Importing this package registers every built-in kind."""

from isoflop.model import (
    activation,
    arrangement,
    attention,
    embedding,
    feedforward,
    head,
    init,
    join,
    norm,
    position,
    prior,
    share,
    stack,
    value_residual,
)
from isoflop.model.architecture import Architecture, Block, BlockChange
from isoflop.model.kernel import KERNELS
from isoflop.model.linear import Part, Role, parameter_roles, parts
from isoflop.model.memory import Memory, Source
from isoflop.model.past import Past
from isoflop.model.pool import pool
from isoflop.model.transformer import Transformer, build

__all__ = [
    "KERNELS",
    "Architecture",
    "Block",
    "BlockChange",
    "Memory",
    "Part",
    "Past",
    "Role",
    "Source",
    "Transformer",
    "activation",
    "arrangement",
    "attention",
    "build",
    "embedding",
    "feedforward",
    "head",
    "init",
    "join",
    "norm",
    "parameter_roles",
    "parts",
    "pool",
    "position",
    "prior",
    "share",
    "stack",
    "value_residual",
]
