"""One recording on local desktops with the bundled policy, for all tests of this folder."""

import asyncio

import pytest
from bundled_weights import SOURCE

from benchmarks.exactness import AGENT
from benchmarks.recording import held_out_tasks, record


@pytest.fixture(scope="session")
def recording(tmp_path_factory):
    tasks = held_out_tasks(4, ("terminal_run", "terminal_close"))
    return asyncio.run(record(SOURCE, tasks, tmp_path_factory.mktemp("frames"), agent=AGENT, turns=6, bystanders=2))
