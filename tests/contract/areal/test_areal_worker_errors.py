"""What a worker cannot do for lack of a setting ends the run with one line, in AReaL's real executor and scheduler."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def run(found) -> dict[str, Any]:
    return found["mistaken"].result()


def test_a_key_that_is_missing_on_the_workers_ends_the_run_with_one_line(run):
    assert run["code"] == 2, run["said"][-4000:]
    (line,) = [line for line in run["said"].splitlines() if line.startswith("error: ")]
    assert line.startswith("error: worker rollout/0 on "), line
    assert "desktops.api_key_env: the environment variable DESKHAND_TEST_NODE_KEY is not set" in line


def test_the_workers_reported_it_where_the_launcher_looks(run):
    assert run["files"]
    assert all("DESKHAND_TEST_NODE_KEY" in text and text.count("\n") == 1 for text in run["files"])
    assert all("of-the-nodes" not in text for text in run["files"]), "the key itself"
