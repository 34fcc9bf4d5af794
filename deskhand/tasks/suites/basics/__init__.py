"""Suite `basics`: families on local desktops, from Debian packages. Used through `suites.family_registry`."""

from __future__ import annotations

from deskhand.errors import ConfigError
from deskhand.tasks.suites.basics import (
    calculator,
    code_copy,
    cross_app,
    dialogs,
    editors,
    file_manager,
    folders,
    forms,
    pictures,
    spreadsheets,
    terminal_count,
    terminal_files,
    terminals,
    text_documents,
    web_pages,
)
from deskhand.tasks.task import Family, Task

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *terminals.FAMILIES,
        *dialogs.FAMILIES,
        calculator.NUMBER,
        *editors.FAMILIES,
        *file_manager.FAMILIES,
        calculator.SUM,
        *forms.FAMILIES,
        *terminal_count.FAMILIES,
        *code_copy.FAMILIES,
        *spreadsheets.FAMILIES,
        *text_documents.FAMILIES,
        *web_pages.FAMILIES,
        *pictures.FAMILIES,
        *cross_app.FAMILIES,
        *terminal_files.FAMILIES,
        *folders.FAMILIES,
    )
}


def make_task(family: str, seed: int) -> Task:
    """Return the variant of a seed. Raises `ConfigError` for an unknown family."""
    if family not in FAMILIES:
        raise ConfigError(f"unknown family {family!r} in suite 'basics'; families: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[family].generate(seed)
