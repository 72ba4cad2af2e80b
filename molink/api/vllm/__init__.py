"""vLLM's own endpoints, in vLLM's shapes."""
