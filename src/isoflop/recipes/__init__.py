"""Complete architectures by name, and how an architecture file is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from isoflop.files import read_json
from isoflop.model import Architecture
from isoflop.model.architecture import lay_over
from isoflop.recipes.plugins import register_entry_points, register_modules
from isoflop.spec import SpecError, did_you_mean, merge_trees, nest, read_toml

_FOLDER = Path(__file__).parent
RUN = "run.json"


class Declared(NamedTuple):
    """What an architecture file holds: the architecture, and its `[training]` table as plain data."""

    architecture: Architecture
    training: dict[str, Any]


def recipes() -> list[str]:
    """The names of the built-in architectures."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name_or_path: str | Path, **overrides: Any) -> Architecture:
    """An architecture from a recipe's name, a TOML file or a run folder, with fields changed.

    Dotted keys reach inside: `load("modern", width=64, **{"attention.heads": 4})`.

    Raises:
        SpecError: the file cannot be read, or what it declares (or an override) cannot be used.
    """
    return load_file(name_or_path, nest(overrides)).architecture


def load_file(name_or_path: str | Path, change: dict[str, Any] | None = None) -> Declared:
    """As `load`, with a nested change, and the file's `[training]` table beside the architecture."""
    register_entry_points()
    table = _table(name_or_path, ())
    training = table.pop("training", {})
    if change:
        register_modules([str(name) for name in change.get("plugins") or []], beside=Path())
        # Changes are laid over the whole declaration, so that `norm.eps=1e-5` changes the norm that is there.
        return Declared(Architecture.parse(table).override(change), training)
    return Declared(Architecture.parse(table), training)


def _table(name_or_path: str | Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    path = _find(name_or_path, seen[-1].parent if seen else Path())
    if path.is_dir():
        return _of_run(path)
    if path in seen:
        raise SpecError.at("extends", f"goes in a circle: {' -> '.join(p.name for p in (*seen, path))}")
    table = read_toml(path)
    if "arms" in table and "base" in table:
        raise SpecError(f"{path} declares a study, not an architecture: isoflop study run {path}")
    if not isinstance(table.get("training", {}), dict):
        raise SpecError.at("training", f"must be a table, came {table['training']!r}")
    plugins = table.get("plugins", [])
    if isinstance(plugins, list):
        register_modules([str(name) for name in plugins], beside=path.parent)
    base_name = table.pop("extends", None)
    if base_name is None:
        return table
    base = _table(str(base_name), (*seen, path))
    base_training, training = base.pop("training", {}), table.pop("training", {})
    merged = lay_over(Architecture.parse(base).dump(), table)
    if isinstance(plugins, list):
        merged["plugins"] = list(dict.fromkeys([*base.get("plugins", []), *plugins]))
    if base_training or training:
        merged["training"] = merge_trees(base_training, training)
    return merged


def _of_run(folder: Path) -> dict[str, Any]:
    """What a run was trained as. It names no code to import: its kinds must be registered already."""
    record = read_json(folder / RUN)
    architecture = record.get("architecture") if isinstance(record, dict) else None
    if not isinstance(architecture, dict):
        raise SpecError(f"{folder / RUN} is no record of a run: it declares no architecture")
    return {name: value for name, value in architecture.items() if name != "plugins"}


def _find(name_or_path: str | Path, folder: Path) -> Path:
    text = str(name_or_path)
    if text in recipes():
        return _FOLDER / f"{text}.toml"
    path = folder / text
    if path.is_dir() and not (path / RUN).exists():
        raise SpecError(f"{path} is a folder that holds no run, not an architecture file")
    if path.suffix == ".toml" or path.exists():
        return path.resolve()
    raise SpecError(f"{text!r} is neither a recipe ({', '.join(recipes())}) nor a file.{did_you_mean(text, recipes())}")
