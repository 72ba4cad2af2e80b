"""`molink agent`: lend this PC, and stay its master."""

from molink_agent.cli.group import main

__all__ = ["main"]
