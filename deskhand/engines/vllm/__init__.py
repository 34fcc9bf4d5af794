"""vLLM as the engine: its token interface, its weights without a restart, and the server when we start it."""

from deskhand.engines.vllm.server import given, started
from deskhand.engines.vllm.wire import VllmWire

__all__ = ["VllmWire", "given", "started"]
