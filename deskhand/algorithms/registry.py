"""Registry of algorithms by name or import path."""

from __future__ import annotations

from deskhand import registry
from deskhand.algorithms.base import Algorithm
from deskhand.errors import ConfigError


def available_algorithms() -> tuple[str, ...]:
    """Return the names of all algorithms."""
    return registry.names("algorithm")


def get_algorithm(ref: str) -> Algorithm:
    """Return the algorithm of a name or import path. Raises `ConfigError` if it is not one."""
    found = registry.resolve("algorithm", ref)
    if not isinstance(found, Algorithm):
        raise ConfigError(
            f"trainer.algorithm: {ref} is not an algorithm; decorate the function with deskhand.algorithm"
        )
    return found
