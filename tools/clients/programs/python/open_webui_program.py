"""Open WebUI's back end: its own API in front of MoLink, as its page asks it."""
