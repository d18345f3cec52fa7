"""isoflop composes, prices, trains and fairly compares Transformer architectures.

The public names are imported when they are first used, so that `import isoflop` and `isoflop --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoflop.model import Architecture, Transformer, build
    from isoflop.plan.cost import Cost, price
    from isoflop.recipes import load
    from isoflop.spec import Slot, Spec, SpecError
    from isoflop.train import Training, load_model

__version__ = "0.1.0"

_HOME = {
    "Architecture": "isoflop.model",
    "Cost": "isoflop.plan.cost",
    "Slot": "isoflop.spec",
    "Spec": "isoflop.spec",
    "SpecError": "isoflop.spec",
    "Training": "isoflop.train",
    "Transformer": "isoflop.model",
    "build": "isoflop.model",
    "load": "isoflop.recipes",
    "load_model": "isoflop.train",
    "price": "isoflop.plan.cost",
}

__all__ = [
    "Architecture",
    "Cost",
    "Slot",
    "Spec",
    "SpecError",
    "Training",
    "Transformer",
    "__version__",
    "build",
    "load",
    "load_model",
    "price",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'isoflop' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = (
        value  # `isoflop.generate` and `.train` are packages too: the function wins, whatever was imported first
    )
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
