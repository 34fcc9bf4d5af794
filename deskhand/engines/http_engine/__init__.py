"""Engine over an HTTP server; `engines.vllm` and `engines.sglang_protocol` add the servers' protocols."""
