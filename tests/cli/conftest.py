"""Clients of a running server are tested against a scripted one."""

from tests.scripted_server import service, url

__all__ = ["service", "url"]
