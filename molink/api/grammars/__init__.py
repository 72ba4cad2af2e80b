"""Grammars that users ask answers to match."""
