"""GGUF files as checkpoints: their tensors, settings and vocabularies in the library's words."""
