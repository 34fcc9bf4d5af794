"""What `deskhand train --trainer areal` starts is ended with it, and what it is asked of a run that is not there is
said."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from patience import limit
from processes import is_alive

from deskhand.errors import ConfigError
from deskhand.integrations.areal import launcher

EXPERIMENT = Path(__file__).parents[3] / "configs" / "areal" / "tiny_cpu.yaml"


def test_workers_that_outlive_their_master_are_ended(tmp_path):
    code = launcher._run(["bash", "-c", "sleep 60 & echo $! > worker; exit 3"], dict(os.environ), tmp_path)
    worker = int((tmp_path / "worker").read_text())
    assert code == 3
    deadline = time.monotonic() + limit(10)
    while is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_run_online_without_a_gateway_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="online"):
        launcher.run_online(EXPERIMENT, tmp_path)
