"""Suite `basics`: families on local desktops, from Debian packages. Used through `suites.family_registry`."""

from __future__ import annotations

from types import ModuleType

from deskhand.errors import ConfigError
from deskhand.tasks.suites.basics import (
    archives,
    calculator,
    code_copy,
    code_editor,
    cross_app,
    dialogs,
    drawings,
    editors,
    file_manager,
    folders,
    forms,
    mail,
    note_errands,
    papers,
    picture_viewer,
    pictures,
    preferences,
    slides,
    spreadsheets,
    terminal_answers,
    terminal_count,
    terminal_files,
    terminals,
    text_documents,
    three_programs,
    two_programs,
    web_pages,
    web_tables,
)
from deskhand.tasks.task import Family, Task


def _families(*modules: ModuleType) -> list[Family]:
    return [each for module in modules for each in vars(module).values() if isinstance(each, Family)]


MODULES = (forms, terminal_count, code_copy, spreadsheets, text_documents, web_pages, web_tables)
MODULES += (pictures, cross_app, terminal_files, folders)
MODULES += (terminal_answers, code_editor, archives, two_programs, note_errands, three_programs)
MODULES += (picture_viewer, papers, preferences, slides, drawings, mail)
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *_families(terminals, dialogs),
        calculator.enter_number,
        *_families(editors, file_manager),
        calculator.enter_sum,
        *_families(*MODULES),
    )
}
"""In the order in which training takes turns."""


def make_task(family: str, seed: int) -> Task:
    """Return the variant of a seed. Raises `ConfigError` for an unknown family."""
    if family not in FAMILIES:
        raise ConfigError(f"unknown family {family!r} in suite 'basics'; families: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[family].generate(seed)
