"""Health reports of a stage while it serves."""
