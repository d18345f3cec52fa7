"""Every code block, file, command, table, example and link of the documentation.

Blocks of a page are taken in order, in an empty folder. A title that is a file's name makes the block that file; other Python
blocks run, in one namespace. TOML is declared by its title: a file (a study if its name says so), `architecture`,
`training` (fields of an architecture file with its recipe) or `study` (a part of one, laid over a small study).
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import tomli_w
import torch
import typer

import formulas
import kinds
import properties
from isoflop.cli import app
from isoflop.cli.output import FAILURE, INFEASIBLE, INTERRUPTED, USAGE
from isoflop.files import read_json
from isoflop.model import Architecture
from isoflop.model.slots import Attention, Head, Norm
from isoflop.plan import price
from isoflop.recipes import load_file, recipes
from isoflop.spec import field_paths, merge_trees, parse_assignments
from isoflop.study.design import Study, load_study
from isoflop.train import Training

ROOT = Path(__file__).parents[2]
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
PAGES = [README, CONTRIBUTING, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
RECIPE = {"steps": 300, "rate": 1e-3}
SMALL_STUDY: dict[str, Any] = {
    "base": "modern",
    "change": {"width": 64, "depth": 2, "attention": {"heads": 4}},
    "training": RECIPE,
}
ASSIGNABLE = {*field_paths(Architecture), *(f"training.{path}" for path in field_paths(Training)), *field_paths(Study)}


class Block(NamedTuple):
    """A fenced block: its language, its title and where it begins."""

    language: str
    title: str
    text: str
    line: int

    @property
    def is_file(self) -> bool:
        return self.title.endswith((".py", ".toml"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2] or "", m[3], text[: m.start()].count("\n") + 1) for m in found]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty working folder; kinds and modules that come up in it are forgotten after."""
    before = set(sys.modules)
    with kinds.registry_restored(), chdir(tmp_path):
        yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


# ------------------------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_says_what_it_is(page: Path) -> None:
    fences = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence is not closed, or its info is not LANGUAGE title=..."
    assert {block.language for block in blocks(page)} <= {"python", "toml", "sh", "text"}
    assert all(block.title for block in blocks(page) if block.language == "toml")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language in {"python", "toml"} for b in blocks(page))], ids=name_of
)
def test_blocks_work_in_order(page: Path, folder: Path) -> None:
    run_blocks(page, folder)


def run_blocks(page: Path, folder: Path) -> dict[str, Any]:
    """Write, load or execute every block; the namespace that the Python blocks leave."""
    namespace: dict[str, Any] = {"__name__": "a_page"}
    for block in blocks(page):
        if block.is_file:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        if block.language == "toml":
            check_toml(block, folder)
        elif block.language == "python" and not block.is_file:
            code = "\n" * block.line + block.text
            exec(compile(code, str(page), "exec", dont_inherit=True), namespace)
    return namespace


def check_toml(block: Block, folder: Path) -> None:
    if block.title == "pyproject.toml":
        assert tomllib.loads(block.text)
        return
    path = folder / (block.title if block.is_file else f"a-block-{block.title}.toml")
    table = tomllib.loads(block.text)
    if block.title == "training":
        table = merge_trees({"training": RECIPE}, table)
    elif block.title == "study":
        table = merge_trees(SMALL_STUDY, table)
    else:
        assert block.is_file or block.title == "architecture", f"no such title of a TOML block: {block.title}"
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    check_file(path)


def check_file(path: Path) -> None:
    """An architecture is priced and its recipe is read; the arms of a study are solved."""
    if "study" in path.name:
        design = load_study(path)
        assert len(design.arms) > 1
        return
    declared = load_file(path)
    length = Training.parse(declared.training).length if declared.training else 16
    assert price(declared.architecture, length).parameters > 0


# ---------------------------------------------------------------------------------------------------------- generated


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_and_tables_are_fresh() -> None:
    assert generator().stale() == [], "run: python docs/generate.py"


def test_a_kind_that_is_new_or_reads_otherwise_makes_them_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    write = generator()
    monkeypatch.setattr(Norm.kinds["rms"], "__doc__", "Another text.")
    assert write.stale() == [ROOT / "docs" / "techniques" / "norm.md"]
    monkeypatch.undo()
    with kinds.registry_restored():
        Norm.kinds["fresh"] = type("Fresh", (Norm.kinds["rms"],), {"__module__": "isoflop.model.norm"}, kind="fresh")
        assert {README, ROOT / "docs" / "techniques" / "norm.md"} <= set(write.stale())


def test_a_users_kinds_are_no_part_of_the_pages() -> None:
    with kinds.registry_restored():
        type("Foreign", (Norm.kinds["rms"],), {"__module__": "somebody"}, kind="foreign")
        assert "foreign" in Norm.kinds
        assert generator().stale() == []


def test_every_kind_has_a_section_and_every_slot_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for slot, entries in generator().families():
        stem = generator().file_stem(slot)
        assert f"techniques/{stem}.md\n" in navigation
        page = (ROOT / "docs" / "techniques" / f"{stem}.md").read_text(encoding="utf-8")
        assert re.findall(r"^## (\S+)$", page, re.MULTILINE) == [entry.kind for entry in entries]


def test_a_place_takes_the_kinds_of_its_slot() -> None:
    """The paths that the pages print, against what a declaration does with them."""
    for slot, _ in generator().families():
        for place in generator().places_of(slot):
            change = parse_assignments([*kinds_with_the_fields_of(place), f"{place}={slot.default_kind}"])
            recipe = merge_trees(RECIPE, change.pop("training", {}))
            architecture = Architecture(form="encoder_decoder").override(change)
            whole: Any = {"training": Training.parse(recipe).dump(), **architecture.dump()}
            for name in place.split("."):
                whole = whole[0] if isinstance(whole, list) else whole
                whole = whole[name]
            whole = whole[0] if isinstance(whole, list) else whole
            assert whole["kind"] == slot.default_kind, place


def kinds_with_the_fields_of(place: str) -> list[str]:
    """What must be declared for a place whose field the default kind of its slot lacks: the kind that has it."""
    name, *fields = place.split(".")
    slot = {"head": Head, "attention": Attention, "cross": Attention}.get(name)
    if slot is None or not fields or fields[0] in slot.kinds[slot.default_kind].model_fields:
        return []
    return [f"{name}={next(kind for kind, spec in slot.kinds.items() if fields[0] in spec.model_fields)}"]


# ------------------------------------------------------------------------------------------------------- five steps


def test_the_worked_example_of_contributing(folder: Path) -> None:
    """Its kind against its own formula, in every value of every field, and in all that holds for every kind."""
    before = dict(formulas.FORMULAS)
    try:
        namespace = run_blocks(CONTRIBUTING, folder)
        kinds.settings.cache_clear()
        settings = [s for s in kinds.settings() if s.path[0] == "norm" and "partial_rms" in str(s)]
        assert [str(s) for s in settings] == [
            "norm=partial_rms",
            "norm.eps=0.05(partial_rms)",
            "norm.fraction=0.5(partial_rms)",
        ]
        for setting in settings:
            architecture = kinds.tiny(setting.change)
            check_equation(architecture.norm)
            properties.check_combination(architecture)
        assert issubclass(namespace["PartialRMS"], Norm)
    finally:
        formulas.FORMULAS.clear()
        formulas.FORMULAS.update(before)
        kinds.settings.cache_clear()


def check_equation(norm: Norm) -> None:
    module = norm.build(9).double()
    numbers = torch.Generator().manual_seed(0)
    gain, x = (torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in [(9,), (4, 9)])
    with torch.no_grad():
        module.get_parameter("gain").copy_(gain)
    weights = formulas.Weights({"gain": gain.tolist()})
    expected = torch.tensor([formulas.of(norm)(row, weights) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(module(x).detach(), expected, atol=1e-5, rtol=1e-5)  # statistics are fp32


# ----------------------------------------------------------------------------------------------------------- commands


COMMAND: Any = typer.main.get_command(app)


def command_lines(text: str) -> list[list[str]]:
    """The words of every command; comments and redirections are left out."""
    lines = []
    for line in text.splitlines():
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part, comments=True)
            words = words[: words.index(">")] if ">" in words else words
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if words:
                lines.append(words)
    return lines


def shown_commands() -> list[tuple[str, list[str]]]:
    """Commands of every `sh` block and of the comments of the examples."""
    found = [
        (name_of(page), w) for page in PAGES for b in blocks(page) if b.language == "sh" for w in command_lines(b.text)
    ]
    for path in EXAMPLES:
        comments = re.findall(r"^#   (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        found += [(name_of(path), words) for comment in comments for words in command_lines(comment)]
    return found


def parse_command(words: list[str]) -> Any:
    """The context of an `isoflop` command: its verb exists, and it takes these options and arguments."""
    command, rest = COMMAND, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command.make_context("isoflop", rest)


ISOFLOP = [(page, words) for page, words in shown_commands() if Path(words[0]).name == "isoflop"]
OTHER = [(page, words) for page, words in shown_commands() if Path(words[0]).name != "isoflop"]


@pytest.mark.parametrize(("page", "words"), ISOFLOP, ids=[f"{page}: {' '.join(words)}" for page, words in ISOFLOP])
def test_commands_take_what_they_are_given(page: str, words: list[str]) -> None:
    context = parse_command(words[1:])
    for assignment in context.params.get("change") or []:
        parse_assignments([assignment])
        assert assignment.partition("=")[0] in ASSIGNABLE


@pytest.mark.parametrize(("page", "words"), OTHER, ids=[f"{page}: {' '.join(words)}" for page, words in OTHER])
def test_other_commands_name_what_there_is(page: str, words: list[str]) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if words[0] == "make":
        assert set(words[1:]) <= set(targets)
    for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(extra.split(",")) <= set(project["optional-dependencies"])
    for path in (word for word in words if word.startswith(("tests/", "docs/", "examples"))):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_exist(page: Path) -> None:
    for text in re.findall(r"`isoflop ([a-z][^`]*)`", prose(page)):
        try:
            parse_command(shlex.split(text))
        except Exception as error:
            # A sentence names the verb alone where the file does not matter.
            if type(error).__name__ not in {"MissingParameter", "NoArgsIsHelpError"}:
                raise
    options = {opt for command in every_command() for param in command.params for opt in param.opts} | {"--version"}
    assert set(re.findall(r"`(--[a-z-]+)`", prose(page))) <= options


def every_command(command: Any = COMMAND) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from every_command(inner)


def test_every_command_and_option_is_documented() -> None:
    whole = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for verb in COMMAND.commands:
        assert f"isoflop {verb}" in whole
    for verb, command in COMMAND.commands["study"].commands.items():
        assert f"isoflop study {verb}" in whole or f"isoflop {verb}" in whole, command


def test_exit_codes_and_recipes_are_those_of_the_program() -> None:
    text = README.read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == {
        0, FAILURE, USAGE, INFEASIBLE, INTERRUPTED,
    }  # fmt: skip
    [named] = re.findall(r"^Recipes: (.+?)\.", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", named)) == set(recipes())


# ----------------------------------------------------------------------------------------------------------- examples


@pytest.fixture
def examples(folder: Path) -> Path:
    """A copy of the examples, which is the working folder."""
    shutil.copytree(
        ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__", "study", "runs")
    )
    with chdir(folder / "examples"):
        yield folder / "examples"


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_example_can_be_used(name: str, examples: Path) -> None:
    check_file(examples / name)


def test_the_windowed_example_is_what_its_comment_says(examples: Path) -> None:
    for name, last in (("windowed_gqa.toml", "rope"), ("windowed_gqa_nope.toml", "none")):
        blocks_of = load_file(examples / name).architecture.declarations
        assert [block.attention.window for block in blocks_of] == [128, 128, None, 128, 128, None]
        assert [block.position[0].kind for block in blocks_of] == ["rope", "rope", last] * 2
        assert {block.attention.shape(256).key_value for block in blocks_of} == {2}


def test_the_example_study_with_a_norm_of_ones_own_runs(examples: Path) -> None:
    tiny = {
        "steps": 2,
        "batch": 2,
        "length": 16,
        "validation_windows": 2,
        "evaluate_every": "default",
        "data.limit": 20000,
    }
    changes = [f"training.{key}={value}" for key, value in tiny.items()]
    command = [sys.executable, "-c", "from isoflop.cli import main; main()", "study", "run", "power_norm_study.toml"]
    command += [*changes, "seeds=2", "change.width=16", "--workers", "1"]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    arms = read_json(examples / "study" / "power-norm" / "results.json")["arms"]
    assert [(arm["name"], arm["n"], arm["failed"]) for arm in arms] == [
        ("base", 2, 0),
        ("power-1", 2, 0),
        ("power-4", 2, 0),
    ]
    assert len({arm["mean"] for arm in arms}) == 3
    assert len({arm["cost"]["parameters"] for arm in arms}) == 1


# -------------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", prose(found), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_the_documentation_names_no_machine() -> None:
    for page in [*PAGES, *EXAMPLES]:
        assert not re.search(r"/(?:home|root|tmp|Users|work)/", page.read_text(encoding="utf-8")), page
