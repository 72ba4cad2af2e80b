"""Traces with shared beginnings of prompts over rings that cache them: `molink sim cache`."""
