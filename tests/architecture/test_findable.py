"""Terms that a newcomer would search for lead to the right file.

For each term, what `grep -ri TERM` finds in file names and in the lines that define classes and
functions must name the file where the thing is.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("molink", "scheduler/molink_scheduler", "agent/molink_agent", "sim/molink_sim")

PLACES = {
    "reconnect": "molink/control/client.py",
    "heartbeat": "molink/coordinator/nodes/node_book.py",
    "backoff": "molink/control/backoff.py",
    "route": "molink/node/hosting.py",
    "relay": "molink/transport/relay/server.py",
    "worker.?process": "molink/stage/stage_process.py",
    "kv.?block": "scheduler/molink_scheduler/kv/blocks.py",
    "micro.?batch": "scheduler/molink_scheduler/head/micro_batches.py",
    "failover": "molink/coordinator/upkeep/failover.py",
    "upload.?cap": "scheduler/molink_scheduler/link/upload_budget.py",
}
"""The term as a pattern without regard to case, and the file that it must lead to."""

FOUND_MAX = 24
"""More files than this are not a lead."""


def definitions(file: Path) -> str:
    """A file's path, and its lines that define a class or a function with their first line."""
    text = file.read_text()
    lines = re.findall(r'^\s*(?:async def|def|class) .*(?:\n\s*""".*)?', text, re.MULTILINE)
    return "\n".join([str(file.relative_to(ROOT)), text.split("\n", 1)[0], *lines])


SOURCES = {
    str(file.relative_to(ROOT)): definitions(file)
    for room in ROOMS
    for file in sorted((ROOT / room).rglob("*.py"))
}


@pytest.mark.parametrize("term", PLACES)
def test_a_term_leads_to_its_file(term):
    found = [name for name, text in SOURCES.items() if re.search(term, text, re.IGNORECASE)]
    assert PLACES[term] in found
