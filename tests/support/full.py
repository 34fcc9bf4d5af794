"""Whether the tests run at full size: `DESKHAND_TEST_FULL=1`. Used by tests whose normal run is a selection."""

from __future__ import annotations

import os

FULL = os.environ.get("DESKHAND_TEST_FULL") == "1"
