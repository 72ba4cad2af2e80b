"""The agent's log: sentences for the owner, and whose a warning is."""

import logging
from types import SimpleNamespace

from molink_agent.daemon.agent_log import LOG_FILE, logged


def test_events_are_sentences_and_warnings_name_their_place(tmp_path):
    told = []
    listener = SimpleNamespace(event=told.append, status=told.append)
    log = logging.getLogger("molink_agent.daemon.process")
    with logged(tmp_path, listener):
        log.info("connected to %s", "https://10.0.0.1:8003")
        log.warning("a line\x1b[31m is slow")
    happened, warned = (tmp_path / LOG_FILE).read_text().splitlines()
    assert happened.endswith(" connected to https://10.0.0.1:8003")
    assert "molink_agent" not in happened and "INFO" not in happened
    assert "WARNING molink_agent.daemon.process: a line" in warned and "\x1b" not in warned
    assert len(told) == 1
