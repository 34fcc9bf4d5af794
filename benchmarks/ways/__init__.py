"""Honest ways to do each family of `basics` and `web`: what a person would do, besides what the oracle does.

One module per kind of screen, each with a table `WAYS` from family to its ways of a task; `person` has the vocabulary.
"""

from __future__ import annotations

from benchmarks.ways import (
    archives,
    code_editor,
    drawings,
    large_screens,
    mail,
    office,
    preferences,
    questions,
    several_programs,
    slides,
    small_screens,
    two_programs,
    viewers,
    web_sites,
)

WAYS = small_screens.WAYS | office.WAYS | large_screens.WAYS | questions.WAYS | code_editor.WAYS | archives.WAYS
WAYS |= two_programs.WAYS | several_programs.WAYS | viewers.WAYS | web_sites.WAYS | preferences.WAYS | slides.WAYS
WAYS |= drawings.WAYS | mail.WAYS
