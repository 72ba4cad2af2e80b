"""One directed link between two processes: its ends, its thread, its connections."""
