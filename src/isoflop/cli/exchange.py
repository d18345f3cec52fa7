"""`isoflop import` and `isoflop export`: models from elsewhere as runs, and runs as models for elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoflop.cli.output import note, print_json, stdout

if TYPE_CHECKING:
    from isoflop.interop import Imported


def import_(
    source: Annotated[str, typer.Argument(help="hf:FOLDER (config.json and safetensors) or gguf:FILE.")],
    out: Annotated[Path, typer.Option(help="The folder of the run that is written.")],
    json: Annotated[bool, typer.Option("--json", help="Print the run's record as JSON.")] = False,
) -> None:
    """Make a run folder of a public model, to plan, generate and go on with.

    Exit codes: 0 ok; 2 the model or the option cannot be used, and nothing was written; 1 any other failure.
    """
    from isoflop.interop import import_gguf, import_model
    from isoflop.train import save_imported

    kind, path = _split(source, {"hf": "a folder with config.json and safetensors", "gguf": "a GGUF file"})
    imported = import_model(path) if kind == "hf" else import_gguf(path)
    record = save_imported(out, imported.model, imported.codec, _source(kind, imported))
    for line in imported.notes:
        note(f"note: {line}")
    if json:
        print_json(record)
    else:
        _print(record, imported, out)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[str, typer.Option(help="hf:FOLDER, which must be empty or not there.")],
    family: Annotated[
        str | None, typer.Option(help="The model_type to say it in; absent = its own, or the first that can.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the model of a run as a folder that transformers loads.

    Exit codes: 0 ok; 2 no family can say the architecture, or the option cannot be used; 1 any other failure.
    """
    from isoflop.files import read_json
    from isoflop.interop import export_model
    from isoflop.train import load_model

    _, path = _split(to, {"hf": "a folder to write"})
    model, architecture, codec = load_model(run)
    source = read_json(run / "run.json").get("source") or {}
    carried = source.get("carried", {})
    family = export_model(model, path, family=family or source.get("family"), codec=codec, carried=carried)
    written = {
        "family": family,
        "path": path,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.head_weight.dtype).removeprefix("torch."),
        "tokenizer": (Path(path) / "tokenizer.json").exists(),
        "architecture": architecture.dump(),
    }
    if json:
        print_json(written)
        return
    stdout.print(f"{written['parameters']:,} parameters, {written['dtype']}, as {family}: {path}", markup=False)
    if not written["tokenizer"]:
        note("note: this run's tokenizer has no form that transformers reads; none was written")


def _split(text: str, kinds: dict[str, str]) -> tuple[str, str]:
    from isoflop.spec import SpecError

    kind, colon, path = text.partition(":")
    if kind not in kinds or not colon or not path:
        ways = " or ".join(f"{name}:PATH, {what}" for name, what in kinds.items())
        raise SpecError(f"must be {ways}; came {text!r}")
    return kind, path


def _source(kind: str, imported: Imported) -> dict[str, Any]:
    return {"format": kind, "family": imported.family, "carried": imported.carried}


def _print(record: dict[str, Any], imported: Imported, out: Path) -> None:
    from isoflop.spec import to_toml

    dtype = str(imported.model.head_weight.dtype).removeprefix("torch.")
    components = ", ".join(f"{name} {count:,}" for name, count in record["cost"]["components"].items())
    stdout.print(to_toml(imported.architecture), markup=False, highlight=False)
    stdout.print(
        f"{imported.family}: {record['cost']['parameters']:,} parameters in {dtype} ({components})", markup=False
    )
    stdout.print(f"run: {out}", markup=False)
