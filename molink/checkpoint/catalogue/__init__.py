"""Models of 2025 and 2026 that need no file to be planned: their facts, and where each is from."""
