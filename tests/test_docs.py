"""README and docs: every command in them is one that there is, every link and setting leads somewhere."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import evidence
from deskhand.cli.main import app
from deskhand.config.load import load_config
from deskhand.config.schema import Config
from deskhand.desktop.applications.catalog import PROFILES
from deskhand.doctor.check_machine import debian_packages
from deskhand.tasks.suites import basics, family_registry

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]


def commands_of(page: Path) -> list[str]:
    """Indented and fenced code lines, without their comments."""
    lines = [line.split(" #")[0].strip() for line in page.read_text().splitlines() if line.startswith("    ")]
    return [line for line in lines if line]


COMMANDS = [(page.name, line) for page in PAGES for line in commands_of(page)]
DESKHAND = [(page, line) for page, line in COMMANDS if re.match(r"(\w+=\S+ )*deskhand ", line)]


@pytest.mark.parametrize(("page", "line"), DESKHAND, ids=lambda value: value)
def test_every_command_parses(page: str, line: str) -> None:
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words[: words.index("deskhand")])
    arguments = words[words.index("deskhand") + 1 :]
    _, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    overrides = bound.arguments.get("overrides") or []
    if (
        "--trainer areal" in line or arguments[0] == "areal"
    ):  # AReaL's parser reads its experiments: tests/contract/areal
        return
    takes_task = arguments[0] in ("tasks", "rescore", "try")
    config = next((ROOT / word for word in arguments if word.endswith(".yaml") and not takes_task), None)
    load_config(config, overrides, variables)


def test_the_help_of_commands_has_no_word_that_is_taken_for_markup() -> None:
    """What stands between < and > is not shown."""
    pages = [*(ROOT / "deskhand" / "cli").glob("*.py")]
    functions = [
        node for page in pages for node in ast.walk(ast.parse(page.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    assert {"demo", "evaluate", "explain", "audit", "sandboxes"} <= {node.name for node in functions}
    assert not [node.name for node in functions if "<" in (ast.get_docstring(node) or "")]


def test_there_are_commands_in_the_docs() -> None:
    assert len(DESKHAND) >= 12


@pytest.mark.parametrize(
    ("page", "line"), [entry for entry in COMMANDS if entry[1].startswith("make ")], ids=lambda value: value
)
def test_every_make_target_is_there(page: str, line: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), line


@pytest.mark.parametrize(
    ("page", "line"), [entry for entry in COMMANDS if "-m benchmarks." in entry[1]], ids=lambda value: value
)
def test_every_benchmark_is_there(page: str, line: str) -> None:
    assert (ROOT / "benchmarks" / f"{line.split('benchmarks.')[1].split()[0]}.py").is_file()


def test_the_benchmarks_page_names_every_benchmark() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert not [name for name in evidence.names() if f"    python -m benchmarks.{name}\n" not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_file_named_in_the_docs_is_there(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    named = [
        name
        for name in re.findall(r"`([\w./-]+/[\w./-]*)`", text)
        if name.split("/")[0] in ("deskhand", "configs", "docs", "tests")
    ]
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists() and name != "docs/evidence/"]
    assert not missing


def headings_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_anchor_in_the_docs_leads_to_a_heading(page: Path) -> None:
    links = [link.split("#") for link in re.findall(r"\]\(([^):]*#[^)]+)\)", page.read_text())]
    assert not [link for link in links if link[1] not in headings_of(page.parent / link[0] if link[0] else page)]


def test_the_picture_of_the_layers_is_the_contract_that_lint_checks() -> None:
    picture = (ROOT / "docs" / "architecture.md").read_text().split("<!-- layers -->")[1].split("<!-- /layers -->")[0]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert [line for line in picture.splitlines() if line and not line.startswith("`")] == contract["layers"]


def test_the_readme_begins_with_what_it_is_and_the_two_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:16])
    assert "Deskhand trains vision-language models to use a computer" in first_screen
    pictures = re.findall(r"!\[[^]]+\]\((docs/images/[^)]+\.gif)\)", first_screen)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).stat().st_size < 1_500_000
        assert getattr(Image.open(ROOT / picture), "n_frames", 1) > 1, "it does not move"
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_every_section_of_the_settings_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "guide.md").read_text()
    for name in Config.model_fields:
        assert f"`{name}`" in text, name


def test_the_packages_of_every_family_are_installed_by_set_up_or_on_demand() -> None:
    wanted = {application for family in basics.FAMILIES.values() for application in family.applications}
    on_demand = {package for profile in PROFILES.values() for package in profile.packages}
    assert wanted <= {*debian_packages(), *on_demand}
    first = {package for name in family_registry.DEFAULT for package in basics.FAMILIES[name].applications}
    assert first <= set(debian_packages())
