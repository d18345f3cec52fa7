"""`isoflop generate`: text from a trained run, or from an architecture with random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoflop.cli.output import note, print_json

if TYPE_CHECKING:
    from isoflop.data import Codec
    from isoflop.model import Transformer


def generate(
    source: Annotated[str, typer.Argument(help="A run folder, a recipe's name or an architecture file.")],
    prompt: Annotated[
        str | None, typer.Option(help="The text to continue; of a run on pairs, the source to answer.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=0, help="How many new tokens at most.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Draw from the most likely tokens of this total probability.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws, and of the weights where they are random.")] = 0,
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="A module with kinds of your own.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print prompt, text and ids as JSON.")] = False,
) -> None:
    """Continue a prompt. A run on pairs answers it instead, up to the end of the target."""
    model, codec = _model(source, seed, plugin or [])
    stream = codec.stream()
    prompt, ids, sources = _prompt(model, codec, prompt)
    # Shown with the first token, when all that can be refused has passed. An answer stands for itself.
    start = iter([prompt if codec.separator is None else ""])

    def show(_row: int, token: int) -> None:
        if not json:
            sys.stdout.write(next(start, "") + stream.push(token))
            sys.stdout.flush()

    [new] = model.generate(
        [ids],
        tokens,
        sources=sources,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop={codec.end_id},
        ids=codec.vocab,  # a vocabulary may be wider, and what is behind its tokenizer is no text
        on_token=show,
    )
    if json:
        print_json({"prompt": prompt, "text": codec.decode(new), "tokens": new})
    else:
        sys.stdout.write(next(start, "") + stream.finish() + "\n")


def _prompt(model: Transformer, codec: Codec, prompt: str | None) -> tuple[str, list[int], list[list[int]] | None]:
    """The prompt, the ids that the decoder begins with, and what an encoder reads.

    A text is continued. A source is closed by the separator, after which its target begins; or an encoder reads it, and
    the target begins as in training, with the end id.
    """
    if codec.separator is None:
        prompt = "import " if prompt is None else prompt
        return prompt, codec.encode(prompt), None
    if prompt is None:
        raise typer.BadParameter("the run was trained on pairs; give a source", param_hint="--prompt")
    ids = codec.encode(prompt)
    return (prompt, [*ids, codec.separator], None) if model.encoder is None else (prompt, [codec.end_id], [ids])


def _model(source: str, seed: int, plugins: list[str]) -> tuple[Transformer, Codec]:
    from isoflop.data import Bytes
    from isoflop.model import build
    from isoflop.recipes import load
    from isoflop.recipes.plugins import register_entry_points, register_modules
    from isoflop.spec import SpecError
    from isoflop.train import load_model

    register_entry_points()
    register_modules(plugins, beside=Path())
    if (Path(source) / "run.json").exists():
        model, _, codec = load_model(source)
        return model, codec
    codec = Bytes().train([])
    architecture = load(source)
    if architecture.vocab != codec.vocab:
        raise SpecError.at(
            "vocab",
            f"must be {codec.vocab}, the ids of text in bytes, came {architecture.vocab}; only a run folder has a tokenizer of its own",
        )
    note("no run folder: the weights are random, and so is the text")
    return build(architecture, seed), codec
