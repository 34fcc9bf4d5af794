"""A real AReaL in its own environment, and what is done there for the tests that were chosen (`areal_jobs`).

Each test runs with the released AReaL, and again with the source tree that `DESKHAND_TEST_AREAL_SOURCE` names, if any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from environments import python_of
from processes import all_ended

AT_ONCE = 2
SOURCE = "DESKHAND_TEST_AREAL_SOURCE"


@pytest.fixture(scope="session", params=["released", "source"])
def areal_python(request) -> Path:
    if request.param == "released":
        return python_of("areal", "DESKHAND_TEST_AREAL")
    if not os.environ.get(SOURCE):
        pytest.skip(f"{SOURCE} names no source tree of AReaL; set it to a checkout, to test that version, too")
    return python_of("areal", "DESKHAND_TEST_AREAL", source=Path(os.environ[SOURCE]))


@pytest.fixture(scope="session")
def found(areal_python, request, tmp_path_factory) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """What the jobs of the chosen tests find, by name. They are begun here and end in their own time, or
    with the tests."""
    from areal_jobs import JOBS

    files = {item.path.stem for item in request.session.items}
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {
            name: pool.submit(job, areal_python, tmp_path_factory.mktemp(name))
            for name, (file, job) in JOBS.items()
            if file in files
        }
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        with all_ended():
            pool.shutdown()
