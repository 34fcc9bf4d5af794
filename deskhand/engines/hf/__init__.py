"""The engine that is always there: transformers in this process, exact log-probs, requests batched continuously."""

from deskhand.engines.hf.engine import EngineStats, HfEngine

__all__ = ["EngineStats", "HfEngine"]
