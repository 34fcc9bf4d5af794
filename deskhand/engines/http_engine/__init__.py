"""Engines that are servers of their own: what is common to all of them; `engines.vllm` and `engines.sglang` add their protocols."""
