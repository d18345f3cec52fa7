"""What several families say in the same words."""

from __future__ import annotations

import math
from typing import Any

from isoflop.interop.config import Config
from isoflop.spec import SpecError

Table = dict[str, Any]

ACTIVATIONS: dict[str, Table] = {
    "gelu": {"kind": "gelu", "form": "exact"},
    "gelu_python": {"kind": "gelu", "form": "exact"},
    "gelu_new": {"kind": "gelu", "form": "tanh"},
    "gelu_fast": {"kind": "gelu", "form": "tanh"},
    "gelu_pytorch_tanh": {"kind": "gelu", "form": "tanh"},
    "relu": {"kind": "relu"},
    "silu": {"kind": "silu"},
    "swish": {"kind": "silu"},
    "sigmoid": {"kind": "sigmoid"},
    "linear": {"kind": "identity"},
}
"""Their names of the activations that we have."""


def activation(config: Config, name: str, default: str) -> Table:
    """The activation that a key names."""
    came = config.get(name, default)
    if came not in ACTIVATIONS:
        raise SpecError.at(name, f"must be one of {', '.join(ACTIVATIONS)}, came {came!r}")
    return ACTIVATIONS[came]


def activation_name(ffn: Table, *preferred: str) -> str | None:
    """Their name for the activation of a feed-forward; of several names, one that a family prefers."""
    names = [name for name, table in ACTIVATIONS.items() if table == ffn.get("activation")]
    return next((name for name in preferred if name in names), next(iter(names), None))


# ---------------------------------------------------------------------------------------------------- rotary positions


def rope(config: Config, theta: float = 10_000.0, fraction: float = 1.0) -> Table:
    """The rotary positions of a config, in the words of any version."""
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    theta = config.get("rope_theta", theta)
    fraction = config.get("partial_rotary_factor", fraction)
    length = config.get("max_position_embeddings")
    return rope_of(parameters or scaling or {}, theta, fraction, length)


def rope_of(parameters: Table, theta: float, fraction: float, length: int | None) -> Table:
    """Rotary positions from a table of parameters; what it lacks is as given."""
    inner = Config(parameters)
    try:
        base = inner.get("rope_theta", theta)
        part = inner.get("partial_rotary_factor", fraction)
        kind = inner.get("rope_type", inner.get("type", "default"))
        inner.ignore("type")
        if kind not in SCALINGS:
            raise SpecError.at("rope_type", f"must be one of {', '.join(SCALINGS)}, came {kind!r}{_why_not(kind)}")
        scaling = SCALINGS[kind](inner, length)
        inner.finish()
    except SpecError as error:
        raise error.under("rope_parameters") from None
    return {"kind": "rope", "base": float(base), "fraction": float(part), "scaling": scaling}


def _why_not(kind: Any) -> str:
    by_text = kind in {"dynamic", "longrope"}
    return (
        ": it goes by the length of the text at hand, keys that are cached and new queries would be turned by two rules"
        if by_text
        else ""
    )


def _unscaled(inner: Config, length: int | None) -> Table:
    inner.ignore("original_max_position_embeddings", "factor")
    return {"kind": "none"}


def _linear(inner: Config, length: int | None) -> Table:
    inner.ignore("original_max_position_embeddings")
    factor = inner.need("factor")
    return {"kind": "linear", "factor": float(factor)} if factor != 1 else {"kind": "none"}


def _llama3(inner: Config, length: int | None) -> Table:
    return {
        "kind": "llama3",
        "factor": float(inner.need("factor")),
        "original_length": _original(inner, length),
        "low_frequency_factor": float(inner.need("low_freq_factor")),
        "high_frequency_factor": float(inner.need("high_freq_factor")),
    }


def _yarn(inner: Config, length: int | None) -> Table:
    factor = float(inner.need("factor"))
    table = {
        "kind": "yarn",
        "factor": factor,
        "original_length": _original(inner, length),
        "beta_fast": float(inner.get("beta_fast", 32)),
        "beta_slow": float(inner.get("beta_slow", 1)),
        "truncate": inner.get("truncate", True),
    }
    attention = inner.get("attention_factor")
    mscale, all_dim = inner.get("mscale"), inner.get("mscale_all_dim")
    if attention is None and mscale and all_dim:
        attention = (0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
    return {**table, **({"attention_factor": float(attention)} if attention is not None else {})}


def _original(inner: Config, length: int | None) -> int:
    found = inner.get("original_max_position_embeddings", length)
    if found is None:
        raise SpecError.at("original_max_position_embeddings", "must be given")
    return int(found)


SCALINGS = {"default": _unscaled, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def rope_keys(position: list[Table]) -> Table:
    """The keys of rotary positions, in the words of both older and newer versions; none where positions are others."""
    parameters = rope_parameters(position)
    if parameters is None:
        return {}
    scaling = {name: value for name, value in parameters.items() if name not in {"rope_theta", "partial_rotary_factor"}}
    scaled = {"rope_scaling": scaling} if scaling["rope_type"] != "default" else {}
    return {"rope_parameters": parameters, "rope_theta": parameters["rope_theta"], **scaled}


def rope_parameters(position: list[Table]) -> Table | None:
    """The table of parameters of a block's one position; None where it is none that they can say."""
    (one, *others) = position
    scaling = one.get("scaling", {"kind": ""})
    words = {"none": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}.get(scaling["kind"])
    if others or words is None:
        return None
    renamed = {str(RENAMED.get(name, name)): value for name, value in scaling.items() if name != "kind"}
    part = {"partial_rotary_factor": one["fraction"]} if one["fraction"] != 1 else {}
    return {"rope_type": words, "rope_theta": one["base"], **part, **renamed}


RENAMED = {
    "original_length": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}


# ---------------------------------------------------------------------------------------------------- windows by block


def sliding(config: Config, depth: int, otherwise: list[str]) -> list[int]:
    """The blocks whose attention has a window, by `layer_types` or else as given."""
    kinds = config.get("layer_types", otherwise)
    unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
    if unknown or len(kinds) != depth:
        raise SpecError.at(
            "layer_types",
            f"must say sliding_attention or full_attention for each of {depth} blocks, came {', '.join(unknown) or len(kinds)}",
        )
    return [number for number, kind in enumerate(kinds) if kind == "sliding_attention"]


def layer_types(blocks: list[Table]) -> list[str]:
    """What each block is called."""
    return ["sliding_attention" if block["attention"].get("window") else "full_attention" for block in blocks]


def windows(blocks: list[Table]) -> int | None:
    """The window of the blocks that have one."""
    return next((block["attention"]["window"] for block in blocks if block["attention"].get("window")), None)
