"""T5: an encoder and a decoder with RMSNorm before each sublayer and one table of biases by distance for each of the two.

T5 v1 ties the head, which then reads the stream divided by the root of its width; v1.1 has a matrix of its own and gates.
"""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import ACTIVATIONS, Table
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import Key, key, norm
from isoflop.model import Architecture
from isoflop.spec import SpecError

TABLE = "attention.terms.0.table.weight"
GATES = {"gated-": "glu", "": "plain"}
UP = {"glu": "wi_0 wi_1", "plain": "wi"}
SHORT = {"gated-gelu": "gelu_new"}
"""Words that mean another activation than the one they name."""


def read(config: Config) -> Table:
    config.only("is_encoder_decoder", (True,), "T5 is an encoder and a decoder")
    config.ignore("dense_act_fn", "is_gated_act", "initializer_factor", "n_positions", "output_past")
    width, depth = config.need("d_model"), config.need("num_layers")
    tied = config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", tied)
    dropout = config.get("dropout_rate", 0.1)
    return {
        "form": "encoder_decoder",
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.get("num_decoder_layers", depth),
        "encoder": {"depth": depth},
        "position": {
            "kind": "t5",
            "buckets": config.get("relative_attention_num_buckets", 32),
            "max_distance": config.get("relative_attention_max_distance", 128),
        },
        "norm": {"kind": "rms", "eps": config.get("layer_norm_epsilon", 1e-6), "cast": "before_gain"},
        "attention": {
            "heads": config.need("num_heads"),
            "head_width": config.need("d_kv"),
            "scale": 1.0,
            "dropout": dropout,
        },
        "ffn": {**_ffn(config), "hidden": config.need("d_ff"), "dropout": dropout},
        "dropout": dropout,
        "head": {"kind": "linear", **({"scale": width**-0.5} if scaled else {})},
        "tie_head": tied,
    }


def _ffn(config: Config) -> Table:
    words = config.get("feed_forward_proj", "relu")
    gate = "gated-" if words.startswith("gated-") else ""
    name = SHORT.get(words, words.removeprefix(gate))
    if name not in ACTIVATIONS:
        allowed = f"{', '.join(ACTIVATIONS)}, or gated- and one of them"
        raise SpecError.at("feed_forward_proj", f"must be one of {allowed}, came {words!r}")
    return {"kind": GATES[gate], "activation": ACTIVATIONS[name]}


def write(said: Said) -> Table:
    attention, ffn = said.first["attention"], said.first["ffn"]
    (position, *_) = said.first["position"]
    return {
        "is_encoder_decoder": True,
        "vocab_size": said.top["vocab"],
        "d_model": said.top["width"],
        "d_kv": attention["head_width"],
        "d_ff": ffn.get("hidden"),
        "num_layers": said.top.get("encoder", {}).get("depth"),
        "num_decoder_layers": said.top["depth"],
        "num_heads": attention.get("heads"),
        "relative_attention_num_buckets": position.get("buckets"),
        "relative_attention_max_distance": position.get("max_distance"),
        "feed_forward_proj": _words(ffn),
        "layer_norm_epsilon": said.top["norm"].get("eps"),
        "dropout_rate": said.first["dropout"],
        "tie_word_embeddings": said.top["tie_head"],
        "scale_decoder_outputs": said.top["head"].get("scale") is not None,
    }


def _words(ffn: Table) -> str | None:
    """The shortest words that mean this feed-forward."""
    gate = next((gate for gate, kind in GATES.items() if kind == ffn["kind"]), "")
    found = [f"{gate}{name}" for name, table in ACTIVATIONS.items() if table == ffn.get("activation")]
    short = [words for words, name in SHORT.items() if words.startswith(gate) and f"{gate}{name}" in found]
    return next(iter([*(short if gate else []), *(words for words in found if words not in SHORT)]), None)


def keys(architecture: Architecture) -> list[Key]:
    reader = architecture.reader
    names = {
        "attention": ("SelfAttention", {"qkv": "q k v", "o": "o"}),
        "cross": ("EncDecAttention", {"q": "q", "kv": "k v", "o": "o"}),
        "ffn": ("DenseReluDense", {"up": UP.get(architecture.ffn.kind, "wi"), "down": "wo"}),
    }
    reading = {sublayer: said for sublayer, said in names.items() if sublayer != "cross"}
    return [
        key("embed.weight", "shared.weight"),
        key("encoder.embed.weight", "encoder.embed_tokens.weight"),
        key("decoder.embed.weight", "decoder.embed_tokens.weight"),
        *_tower("encoder.", "encoder.", 0 if reader is None else reader.depth, reading),
        *_tower("", "decoder.", architecture.depth, names),
        key("head.weight", "lm_head.weight"),
    ]


def _tower(ours: str, theirs: str, depth: int, names: dict[str, tuple[str, dict[str, str]]]) -> list[Key]:
    return [
        key(f"{ours}blocks.0.{TABLE}", f"{theirs}block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        *(
            one
            for number in range(depth)
            for place, (sublayer, (module, maps)) in enumerate(names.items())
            for one in _sublayer(
                f"{ours}blocks.{number}.{sublayer}", f"{theirs}block.{number}.layer.{place}.", module, maps
            )
        ),
        *norm(f"{ours}final_norm", f"{theirs}final_layer_norm"),
    ]


def _sublayer(ours: str, layer: str, module: str, maps: dict[str, str]) -> list[Key]:
    matrices = [
        key(f"{ours}.{mine}.weight", *(f"{layer}{module}.{name}.weight" for name in names.split()))
        for mine, names in maps.items()
    ]
    return [*norm(f"{ours}_join.norm_in", f"{layer}layer_norm"), *matrices]


UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
T5 = Family("t5", "T5ForConditionalGeneration", read, write, keys, "", UNUSED)
