"""vLLM engine: launching or connecting to a server, and its protocol."""

from deskhand.engines.vllm.vllm_protocol import VllmProtocol, connect_vllm, launch_vllm

__all__ = ["VllmProtocol", "connect_vllm", "launch_vllm"]
