"""vLLM as the engine: its token interface, its weights without a restart, and the server when we start it."""

from deskhand.engines.vllm.server import connect_vllm, launch_vllm
from deskhand.engines.vllm.wire import VllmProtocol

__all__ = ["VllmProtocol", "connect_vllm", "launch_vllm"]
