"""A server's requests, links and events as a trace, over its REST API: `python -m tools.trace`."""
