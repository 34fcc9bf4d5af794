"""vLLM engine: launching or connecting to a server, and its protocol."""

from deskhand.engines.vllm.launch import connect_vllm, launch_vllm
from deskhand.engines.vllm.vllm_protocol import VllmProtocol

__all__ = ["VllmProtocol", "connect_vllm", "launch_vllm"]
