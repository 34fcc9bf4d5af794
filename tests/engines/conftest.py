from __future__ import annotations

import pytest
import random_models

from deskhand.models.load import LoadedModel


@pytest.fixture(params=["qwen3_vl", "qwen2_5_vl", "qwen3_5"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def loaded(family: str) -> LoadedModel:
    return random_models.wrap(family)
