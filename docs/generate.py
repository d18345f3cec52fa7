"""Writes what the documentation says about the kinds, from the kinds themselves.

    python docs/generate.py            # rewrite the pages and tables
    python docs/generate.py --check    # exit 1 if one of them is stale, and name it

Generated are the pages in docs/techniques/, and what stands between the markers `kinds:begin` and `kinds:end` in README.md
and mkdocs.yml, the tables of benchmarks and studies in docs/results/index.md and the listing in docs/guide/extending.md.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import isoflop.train
from isoflop.catalogue import FieldEntry, KindEntry, catalogue
from isoflop.files import write_atomic
from isoflop.model import Architecture
from isoflop.spec import Slot, Spec, slots

ROOT = Path(__file__).resolve().parents[1]
TECHNIQUES = ROOT / "docs" / "techniques"
NOTICE = "<!-- Written by docs/generate.py from the kinds in src/isoflop. Change the docstrings, not this page. -->\n"

Family = tuple[type[Slot], list[KindEntry]]


def families() -> list[Family]:
    """Every slot of this package with its kinds: those of a model first. A user's own kinds are left out."""
    own = [entry for entry in catalogue() if _class_of(entry).__module__.startswith("isoflop.")]
    grouped = [(slots()[name], list(entries)) for name, entries in groupby(own, key=lambda entry: entry.slot)]
    model = [slot for slot in slots().values() if slot.__module__ == "isoflop.model.slots"]
    return sorted(grouped, key=lambda family: (family[0] not in model, _rank(family[0], model), family[0].__name__))


def outputs() -> dict[Path, str]:
    """Every generated file with the content that it must have."""
    found = families()
    pages = {TECHNIQUES / f"{file_stem(slot)}.md": _page(slot, entries) for slot, entries in found}
    marked = [
        (ROOT / "README.md", "kinds", "<!-- {} -->", _table(found, "docs/techniques/")),
        (ROOT / "mkdocs.yml", "kinds", "# {}", _navigation(found)),
        (ROOT / "docs" / "results" / "index.md", "benchmarks", "<!-- {} -->", _benchmarks()),
        *(
            (ROOT / "docs" / "results" / "index.md", f"study {folder.name}", "<!-- {} -->", _study(folder))
            for folder in sorted((ROOT / "studies").glob("*/"))
        ),
        (ROOT / "docs" / "guide" / "extending.md", "power_norm", "<!-- {} -->", _example_file("power_norm.py")),
    ]
    return {
        TECHNIQUES / "index.md": _index(found),
        **pages,
        **_filled(marked),
    }


def stale() -> list[Path]:
    """Generated files whose content is not what `outputs` says, and pages of slots that are gone."""
    wanted = outputs()
    left_over = [path for path in TECHNIQUES.glob("*.md") if path not in wanted]
    return [
        *(path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text),
        *left_over,
    ]


# ------------------------------------------------------------------------------------------------------------- pages


def _page(slot: type[Slot], entries: list[KindEntry]) -> str:
    places = ", ".join(f"`{place}`" for place in places_of(slot))
    head = f"# {title(slot)}\n\n{_summary(slot)}\n\nDeclared as {places}. Default: `{slot.default_kind}`.\n"
    return "\n".join([NOTICE, head, *(_kind(slot, entry) for entry in entries)])


def _kind(slot: type[Slot], entry: KindEntry) -> str:
    blocks = [f"## {entry.kind}", entry.text]
    if entry.formula:
        blocks.append(f"```text\n{_one_line(entry.formula)}\n```")
    if entry.paper:
        blocks.append(f"Source: {_linked(_one_line(entry.paper))}")
    if entry.fields:
        rows = [f"| `{f.name}` | {_cell(f.takes)} | {_default(f)} |" for f in entry.fields]
        blocks.append("\n".join(["| field | takes | default |", "|---|---|---|", *rows]))
    blocks.append(f'```toml title="{_file_of(slot)}"\n{_example(slot, entry)}\n```')
    return "\n\n".join(blocks) + "\n"


# What a kind cannot stand without.
BESIDE = {("Attention", "hard_coded"): ['position = "none"']}


def _example(slot: type[Slot], entry: KindEntry) -> str:
    """The kind in place, with the fields that have a plain default written out."""
    plain = [(f.name, f.default) for f in entry.fields if f.default is not None]
    table = ", ".join(f"{name} = {_toml(value)}" for name, value in [("kind", entry.kind), *plain])
    own = f"{places_of(slot)[0]} = {{ {table} }}" if plain else f"{places_of(slot)[0]} = {_toml(entry.kind)}"
    return "\n".join([own, *BESIDE.get((slot.__name__, entry.kind), [])])


def _index(found: list[Family]) -> str:
    text = (
        "# Techniques\n\n"
        "A *slot* is a place in an architecture or a recipe, a *kind* is what can stand there. One page for each slot;\n"
        "`isoflop kinds NAME` prints the same on the command line, and a kind of your own is listed there beside these.\n"
    )
    return "\n".join([NOTICE, text, _table(found, "")])


def _table(found: list[Family], folder: str) -> str:
    rows = [
        f"| [{title(slot)}]({folder}{file_stem(slot)}.md) | `{places_of(slot)[0]}` | {', '.join(_names(slot, entries))} |"
        for slot, entries in found
    ]
    return "\n".join(["| slot | in a file | kinds (the default in bold) |", "|---|---|---|", *rows]) + "\n"


def _navigation(found: list[Family]) -> str:
    return "".join(f"      - {title(slot)}: techniques/{file_stem(slot)}.md\n" for slot, _ in found)


def _example_file(name: str) -> str:
    return f'```python title="{name}"\n{(ROOT / "examples" / name).read_text(encoding="utf-8")}```\n'


def _benchmarks() -> str:
    rows = []
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        summary = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        found = sorted((script.parent / "results").glob(f"{script.stem}*.json"))
        shown = ", ".join(f"`benchmarks/results/{results.name}`" for results in found) or "run it"
        rows.append(f"| `benchmarks/{script.name}` | {_cell(_one_line(summary))} | {shown} |")
    return "\n".join(["| script | what is measured | results |", "|---|---|---|", *rows]) + "\n"


def _study(folder: Path) -> str:
    """What the arms of a committed study came to on every set."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    names = [row["set"] for row in results["sets"]]
    rows = [f"| arm | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for place, arm in enumerate(results["arms"]):
        cells = [_in_set(row["arms"][place]) for row in results["sets"]]
        rows.append(f"| {arm['name']} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _in_set(arm: dict[str, Any]) -> str:
    """The mean, the change against the arm's own training where there is one, and the verdict against the base."""
    if arm["mean"] is None:
        return arm["verdict"]
    change = f" ({arm['change']['mean']:+.3f})" if arm["change"]["mean"] else ""
    return f"{arm['mean']:.3f}{change}" + ("" if arm["verdict"] == "base" else f" {arm['verdict']}")


# --------------------------------------------------------------------------------------------------- where a kind fits


# Fields of a kind that no declaration can give at this place: what they say is about one text, and this looks at another.
REFUSED = frozenset({"cross.value_residual"})


def places_of(slot: type[Slot]) -> list[str]:
    """Dotted paths in a file at which a kind of this slot stands, the shortest first."""
    paths = [
        *_paths(Architecture, slot, (), ()),
        *(f"training.{p}" for p in _paths(isoflop.train.Training, slot, (), ())),
    ]
    legal = dict.fromkeys(path for path in paths if path not in REFUSED)
    return sorted(legal, key=lambda path: (path.count("."), paths.index(path)))


def _paths(cls: type[Spec], slot: type[Slot], above: tuple[str, ...], seen: tuple[type, ...]) -> Iterator[str]:
    for name, field in cls.model_fields.items():
        for inner in _specs_in(field.annotation):
            if inner is slot:
                yield ".".join((*above, name))
            kinds = inner.kinds.values() if issubclass(inner, Slot) and not hasattr(inner, "kind") else [inner]
            for kind in kinds:
                if kind not in seen:
                    yield from _paths(kind, slot, (*above, name), (*seen, kind))


def _specs_in(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for argument in get_args(annotation):
        yield from _specs_in(argument)


def _file_of(slot: type[Slot]) -> str:
    """How a TOML block of this slot is titled; the tests read it so."""
    return "training" if places_of(slot)[0].startswith("training.") else "architecture"


# ------------------------------------------------------------------------------------------------------------- words


def title(slot: type[Slot]) -> str:
    """`FeedForward` as `Feed forward`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", slot.__name__).capitalize()


def file_stem(slot: type[Slot]) -> str:
    """`FeedForward` as `feed-forward`."""
    return title(slot).lower().replace(" ", "-")


def _names(slot: type[Slot], entries: Iterable[KindEntry]) -> list[str]:
    return [f"**{entry.kind}**" if entry.default else entry.kind for entry in entries]


def _summary(slot: type[Slot]) -> str:
    """The first paragraph of a slot's docstring, its shapes as code."""
    text = _one_line((inspect.getdoc(slot) or "").split("\n\n")[0])
    words, colon, shapes = text.partition(": ")
    return f"{words}: `{shapes.removesuffix('.')}`." if colon and "->" in shapes else text


def _linked(paper: str) -> str:
    """arXiv numbers as links."""
    return re.sub(r"(?:arXiv[: ])?\b(\d{4}\.\d{5})\b", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)


def _default(field: FieldEntry) -> str:
    if field.required:
        return "must be given"
    return "absent" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _class_of(entry: KindEntry) -> type[Slot]:
    return slots()[entry.slot].kinds[entry.kind]


def _rank(slot: type[Slot], order: list[type[Slot]]) -> int:
    return order.index(slot) if slot in order else len(order)


def _filled(marked: Iterable[tuple[Path, str, str, str]]) -> dict[Path, str]:
    """Files with what stands between their markers replaced; a file may have several pairs of them."""
    found: dict[Path, str] = {}
    for path, name, comment, text in marked:
        whole = found[path] if path in found else path.read_text(encoding="utf-8")
        found[path] = _between(path, whole, name, comment, text)
    return found


def _between(path: Path, whole: str, name: str, comment: str, text: str) -> str:
    """A file's content with what stands between its two markers replaced."""
    begin, end = comment.format(f"{name}:begin"), comment.format(f"{name}:end")
    pattern = re.compile(rf"({re.escape(begin)}\n).*?([ ]*{re.escape(end)})", re.DOTALL)
    if len(pattern.findall(whole)) != 1:
        raise ValueError(f"{path} must hold the markers {begin!r} and {end!r} once")
    return pattern.sub(lambda match: match[1] + text + match[2], whole)


def main(arguments: list[str]) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the pages and tables that come from the kinds.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is stale")
    check = parser.parse_args(arguments).check
    changed, wanted = stale(), outputs()
    for path in changed:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}", file=sys.stderr)
        if not check and path in wanted:
            write_atomic(path, wanted[path])
        elif not check:
            path.unlink()
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
