from __future__ import annotations

import pytest
import random_models
from full import FULL

from deskhand.models.load import LoadedModel

FAMILIES = ["qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen3_5"]
if FULL:  # its parts are those of the others
    FAMILIES.append("qwen3_5_moe")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def loaded(family: str) -> LoadedModel:
    return random_models.wrap(family)
