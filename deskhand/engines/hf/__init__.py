"""In-process engine: transformers, exact log-probs, continuous batching. Needs no other package."""

from deskhand.engines.hf.engine import EngineStats, HfEngine

__all__ = ["EngineStats", "HfEngine"]
