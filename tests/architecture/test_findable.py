"""Terms that a newcomer would search for lead to the right file, first of at most five.

Looked through are the names of files and folders and the first sentence of each file, as by
`git ls-files | grep -i TERM` and a glance at the heads of what that leaves.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("molink", "scheduler/molink_scheduler", "agent/molink_agent")

PLACES = {
    "admission": "scheduler/molink_scheduler/routing/admission.py",
    "backoff": "molink/control/backoff.py",
    "cluster.?report": "molink/coordinator/reports/cluster_report.py",
    "codec": "molink/wire/codecs.py",
    "congestion": "scheduler/molink_scheduler/link/window.py",
    "doctor": "agent/molink_agent/doctor/facts.py",
    "emulat": "molink/transport/emulator.py",
    "estimator": "scheduler/molink_scheduler/link/estimator.py",
    "eviction": "scheduler/molink_scheduler/kv/eviction.py",
    "failover": "scheduler/molink_scheduler/recovery/machine.py",
    "frame": "molink/wire/frames.py",
    "handover": "molink/coordinator/upkeep/handover.py",
    "heartbeat": "molink/control/heartbeats.py",
    "invite": "molink/control/messages/invites.py",
    "kv.?block": "scheduler/molink_scheduler/kv/blocks.py",
    "kv.?format": "molink/checkpoint/kv_format.py",
    "micro.?batch": "scheduler/molink_scheduler/head/micro_batches.py",
    "node.?report": "molink/coordinator/reports/node_reports.py",
    "pacer": "scheduler/molink_scheduler/link/pacer.py",
    "quarantine": "molink/coordinator/audits/quarantine.py",
    "radix": "scheduler/molink_scheduler/kv/prefix_tree.py",
    "rate.?limit": "molink/token_bucket.py",
    "reconnect": "molink/control/client.py",
    "recovery": "scheduler/molink_scheduler/recovery/machine.py",
    "relay": "molink/transport/relay/server.py",
    "sampler": "molink/engine/sampling/sampler.py",
    "shadow": "molink/coordinator/upkeep/shadows.py",
    "stage.?event": "molink/wire/stage_events.py",
    "standby": "molink/coordinator/upkeep/standbys.py",
    "take.?over": "molink/coordinator/upkeep/take_over.py",
    "tier": "scheduler/molink_scheduler/kv/tiers.py",
    "upload.?cap": "scheduler/molink_scheduler/link/upload_budget.py",
    "worker.?process": "molink/stage/stage_process.py",
}
"""The term as a pattern without regard to case, and the file that it must lead to."""

FOUND_MAX = 5
"""Hits that somebody looks at."""

NOT_THERE = 1000


def first_sentence(source: str) -> str:
    """The beginning of a file's docstring."""
    return (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].replace("\n", " ")


@cache
def all_heads() -> dict[str, str]:
    return {
        str(file.relative_to(ROOT)): first_sentence(file.read_text(encoding="utf-8"))
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        if file.name != "__init__.py"
    }


def place(name: str, head: str, term: str) -> tuple[bool, int, int]:
    """Where a hit stands among others: those of a name first, then as early as the head says it."""
    path = Path(name)
    is_named = any(re.search(term, one, re.IGNORECASE) for one in (path.stem, path.parent.name))
    told = re.search(term, head, re.IGNORECASE)
    return not is_named, told.start() if told else NOT_THERE, len(path.stem)


def hits(heads: dict[str, str], term: str) -> list[str]:
    """Files that a term leads to, the likeliest first."""
    places = {name: place(name, head, term) for name, head in heads.items()}
    found = [name for name, at in places.items() if not at[0] or at[1] < NOT_THERE]
    return sorted(found, key=lambda name: (places[name], name))[:FOUND_MAX]


@pytest.mark.parametrize("term", PLACES)
def test_a_term_leads_to_its_file_first(term):
    assert hits(all_heads(), term)[0] == PLACES[term]


def test_a_term_that_nobody_says_leads_nowhere():
    heads = {
        "a/pool.py": "Blocks of a pool.",
        "b/kv_block.py": "Something.",
        "c/x.py": "KV blocks.",
    }
    assert hits(heads, "kv.?block") == ["b/kv_block.py", "c/x.py"]
    assert hits(heads, "eviction") == []
