"""What models read is what it was, to the byte: prompts, schemas, reasons of refusals, instructions, weights.

A model that was trained on one text is worse at another, and results with other texts cannot be compared. Who means to
change a text writes the digests anew, in the same commit:

    MODEL_TEXT_WRITE=1 python -m pytest tests/test_model_visible_text.py

To see what a change does, write the texts of both commits to folders and compare them (`diff -r`):

    MODEL_TEXT_DUMP=FOLDER python -m pytest tests/test_model_visible_text.py
"""

from __future__ import annotations

import json

import model_text
import pytest

HINT = (
    f"models read another text than before; {model_text.DUMP}=FOLDER writes the texts, and if the change is meant, "
    f"{model_text.WRITE}=1 the digests"
)


@pytest.mark.parametrize("part", model_text.PARTS)
def test_model_visible_text_is_unchanged(part):
    missing = model_text.MISSING.get(part, lambda: None)()
    if missing:
        pytest.skip(missing)
    found = model_text.differences(part)
    shown = "\n".join([*found[: model_text.SHOWN], f"... {len(found)} in all"])
    assert not found, f"{HINT}:\n{shown}"


def test_every_part_has_digests_of_its_own():
    assert {path.stem for path in model_text.FOLDER.iterdir()} == set(model_text.PARTS)
    groups = [group for path in model_text.FOLDER.iterdir() for group in json.loads(path.read_text(encoding="utf-8"))]
    assert len(groups) == len(set(groups))
