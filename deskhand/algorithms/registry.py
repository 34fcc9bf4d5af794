"""Algorithms by name or import path."""

from __future__ import annotations

from deskhand import registry
from deskhand.algorithms.base import Algorithm
from deskhand.errors import ConfigError


def available_algorithms() -> tuple[str, ...]:
    """Names of all algorithms."""
    return registry.names("algorithm")


def get_algorithm(ref: str) -> Algorithm:
    """The algorithm that a name or an import path stands for. Raises `ConfigError`."""
    found = registry.resolve("algorithm", ref)
    if not isinstance(found, Algorithm):
        raise ConfigError(
            f"trainer.algorithm: {ref} is not an algorithm; decorate the function with deskhand.algorithm"
        )
    return found
