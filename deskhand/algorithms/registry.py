"""The algorithms by name."""

from __future__ import annotations

from deskhand.algorithms import dr_grpo, grpo, gspo, ppo
from deskhand.algorithms.base import Algorithm, AlgorithmName

ALGORITHMS: dict[AlgorithmName, Algorithm] = {
    found.name: found for found in (grpo.ALGORITHM, dr_grpo.ALGORITHM, gspo.ALGORITHM, ppo.ALGORITHM)
}
