"""Tests here talk to a scripted server."""

from tests.scripted_server import service, url

__all__ = ["service", "url"]
