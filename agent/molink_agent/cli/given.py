"""What this PC has given so far: the coordinator keeps that book."""

import json
from collections.abc import Collection
from typing import Any
from urllib.request import urlopen

__all__ = ["given_so_far"]

ANSWER_WITHIN_S = 3.0
"""A status without it is better than one that keeps its reader waiting."""

ANSWER_BYTES_MAX = 64 * 2**20
"""Some 4 KB for each of the nodes that a coordinator takes at most."""


def given_so_far(cluster_url: str, node_ids: Collection[str]) -> dict[str, Any] | None:
    """`contribution` in GET /cluster, of all devices together; None when it cannot be asked, as
    behind a password."""
    if not cluster_url.startswith(("http://", "https://")):
        return None
    try:
        with urlopen(f"{cluster_url}/cluster", timeout=ANSWER_WITHIN_S) as answer:
            nodes = json.loads(answer.read(ANSWER_BYTES_MAX))["nodes"]
        own = [node["contribution"] for node in nodes if node["id"] in node_ids]
        keys = ("uptime_s", "token_layers", "bytes_sent") if own else ()
        return {key: sum(int(given[key]) for given in own) for key in keys} or None
    except (OSError, ValueError, KeyError, TypeError):
        return None
