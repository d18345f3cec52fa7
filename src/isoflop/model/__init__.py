"""What is declared and how it computes. Importing this package registers every built-in kind."""

from isoflop.model import activation, attention, feedforward, init, join, norm, position, prior, stack
from isoflop.model.architecture import Architecture, Block, BlockChange
from isoflop.model.kernel import KERNELS
from isoflop.model.linear import Part, Role, parameter_roles, parts
from isoflop.model.transformer import Transformer, build

__all__ = [
    "KERNELS",
    "Architecture",
    "Block",
    "BlockChange",
    "Part",
    "Role",
    "Transformer",
    "activation",
    "attention",
    "build",
    "feedforward",
    "init",
    "join",
    "norm",
    "parameter_roles",
    "parts",
    "position",
    "prior",
    "stack",
]
