"""Settings of the training loop. Invariant: importing this needs no torch, and a wrong value is an error that names its field."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LoopConfig(BaseModel):
    """How much is rolled out and trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=20, ge=1)
    """Versions of the weights to reach."""
    groups_per_step: int = Field(default=4, ge=1)
    group_size: int = Field(default=8, ge=2)
    """Episodes of one task."""
    max_staleness: int = Field(default=1, ge=0)
    desktops: int = Field(default=4, ge=1)
    """Episodes at a time."""
    max_refills: int | None = Field(default=None, ge=0)
    """New episodes in place of unscored ones, per group; None is `group_size`."""
    advantage: Literal["std", "none"] = "std"
    """Whether advantages are divided by the group's standard deviation."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps between checkpoints. What is trained between two is trained again after a kill, from the older one."""
