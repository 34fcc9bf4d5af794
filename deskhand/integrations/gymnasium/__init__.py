"""Deskhand's desktops for [Gymnasium](https://gymnasium.farama.org): importing this registers `Deskhand-v0`.

Requires the extra `gymnasium`. Real programs are not deterministic to the pixel, so the environment is registered so.
"""

from __future__ import annotations

import importlib
from typing import Any

from deskhand.integrations.gymnasium.env import GymnasiumEnv as GymnasiumEnv

gymnasium: Any = importlib.import_module("gymnasium")
ENV_ID = "Deskhand-v0"

if ENV_ID not in gymnasium.registry:
    gymnasium.register(ENV_ID, entry_point="deskhand.integrations.gymnasium:GymnasiumEnv", nondeterministic=True)
