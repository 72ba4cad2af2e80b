"""Makes the checkpoints that nodes fetch: from a GGUF file, or from a model with plain weights."""
