"""Docs, help texts, messages and docstrings use the field's terms and American English; instructions of tasks have
American spelling.

`tests/language/avoid.txt` lists what to avoid, one pattern per line, with what to write instead. Code spans and code
blocks are not checked. Nor are `ParseError` and `AgentError`: models read them, so their text must not change.
"""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App
from rich.console import Console

from deskhand.cli.main import app
from deskhand.tasks.suites import basics, web

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).parent / "language" / "avoid.txt"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
MODULES = sorted((ROOT / "deskhand").rglob("*.py"))
PARTS = sorted({path.relative_to(ROOT / "deskhand").parts[0] for path in MODULES})
READ_BY_MODELS = ("ParseError", "AgentError")
PRINTS = ("print", "echo", "say", "debug", "info", "warning", "error", "exception", "critical")
"""Functions and methods whose literal arguments a person reads: output and log events."""


Rule = tuple[re.Pattern[str], str]


def rules(text: str) -> list[Rule]:
    """Each pattern of a list with what to write instead."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split(" => ") for line in lines]
    return [
        (re.compile(pattern if pattern.startswith(r"\A") else rf"\b(?:{pattern})\b", re.IGNORECASE), better)
        for pattern, better in pairs
    ]


RULES = rules(LIST.read_text())
SPELLING = rules(LIST.read_text().partition("# American spelling\n")[2])


def found_in(text: str, rules: list[Rule] = RULES) -> list[str]:
    """What a list has against a text, code spans aside."""
    text = re.sub(r"``[^`]*``|`[^`\n]*`", "`code`", text)
    text = re.sub(r"\s+", " ", text).strip()
    return [f"{found[0]!r}: {better}" for pattern, better in rules for found in pattern.finditer(text)]


def prose_of(page: str) -> str:
    """Markdown without code blocks, link targets and generated tables, which come from the code."""
    page = re.sub(r"<!-- table -->.*?<!-- end of table -->", "", page, flags=re.DOTALL)
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^    .*$", "", page, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", page)


def literals_of(node: ast.AST) -> Iterator[ast.Constant]:
    yield from (part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))


def name_of(call: ast.expr) -> str:
    """The last name of what is called: `error` of `log.error(...)`."""
    called = call.func if isinstance(call, ast.Call) else call
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, also of fields, and literals of raised errors, printed lines and log events, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
        elif isinstance(node, ast.Raise) and node.exc is not None and name_of(node.exc) not in READ_BY_MODELS:
            yield from ((literal.lineno, str(literal.value)) for literal in literals_of(node.exc))
        elif isinstance(node, ast.Call) and name_of(node) in PRINTS:
            yield from ((literal.lineno, str(literal.value)) for literal in literals_of(node))


def commands_of(group: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command line that has a help text, as tuples of words."""
    yield path
    for name in group:
        if not name.startswith("-"):
            yield from commands_of(group[name], (*path, name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_docs_use_the_terms_of_the_field(page: Path) -> None:
    assert not found_in(prose_of(page.read_text()))


@pytest.mark.parametrize("words", commands_of(app), ids=" ".join)
def test_the_help_of_every_command_uses_the_terms_of_the_field(words: tuple[str, ...]) -> None:
    shown = io.StringIO()
    app.help_print(list(words), console=Console(file=shown, width=1000))
    assert "deskhand" in shown.getvalue()
    assert not found_in(re.sub(r"[─│╭╮╰╯]", " ", shown.getvalue()))


@pytest.mark.parametrize("part", PARTS)
def test_messages_and_docstrings_use_the_terms_of_the_field(part: str) -> None:
    modules = [path for path in MODULES if path.relative_to(ROOT / "deskhand").parts[0] == part]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in modules
        for line, text in texts_of(path.read_text())
        for problem in found_in(text)
    ]
    assert not wrong, "\n".join([f"{len(wrong)} in deskhand/{part}", *wrong])


@pytest.mark.parametrize("suite", [basics, web], ids=["basics", "web"])
def test_instructions_have_american_spelling(suite) -> None:
    wrong = [
        f"{family.name}: {problem}"
        for family in suite.FAMILIES.values()
        for text in (family.summary, *(family.generate(seed).instruction for seed in range(3)))
        for problem in found_in(text, SPELLING)
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_the_list_finds_a_word_anywhere_but_in_code() -> None:
    assert found_in("Mended, it was.") == ["'Mended': fix, hint"]
    assert not found_in("Returns None if `mend` is None; amends nothing, besides.")
    assert prose_of("a\n\n    mend\n\n```\nmend\n```\n[b](mend.md)\n").split() == ["a", "[b]"]
    source = (
        'raise ConfigError(f"mend {x}")\nraise ParseError("mend")\nlog.warning("anew")\n"""Beside."""\nkept = "mend"\n'
    )
    assert sorted(texts_of(source)) == [(1, "mend "), (3, "anew"), (4, "Beside.")]


def test_every_pattern_of_the_list_is_one_that_can_be_found() -> None:
    assert SPELLING
    assert all(better.strip() for _, better in RULES)
    assert len({pattern.pattern for pattern, _ in RULES}) == len(RULES)
    assert not [pattern.pattern for pattern, _ in RULES if pattern.search("")]
