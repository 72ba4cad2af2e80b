"""GGUF files: their table of contents, and what their blocks take."""
