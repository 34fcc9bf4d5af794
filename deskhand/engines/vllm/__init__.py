"""vLLM as the engine: its token interface, its weights without a restart, and the server when we start it."""

from deskhand.engines.vllm.launch import connect_vllm, launch_vllm
from deskhand.engines.vllm.vllm_protocol import VllmProtocol

__all__ = ["VllmProtocol", "connect_vllm", "launch_vllm"]
