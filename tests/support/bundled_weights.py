"""The bundled policy, for tests that need its weights."""

import pytest

from deskhand.models.load import TINY_FOLDER

SOURCE = "tiny"
needs_weights = pytest.mark.skipif(
    not TINY_FOLDER.is_dir(), reason=f"the weights of the bundled policy are not in {TINY_FOLDER}"
)
