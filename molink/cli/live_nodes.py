"""What the nodes do now, asked of the coordinator that runs: for lists that the registry alone
cannot fill."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

__all__ = ["live_nodes"]

ANSWER_WITHIN_S = 3.0
"""A coordinator on this machine answers in milliseconds; a list is printed without it, too."""

ANSWER_BYTES_MAX = 64 * 2**20
"""Some 4 KB for each of the nodes that a coordinator takes at most."""


def live_nodes(url: str | None) -> dict[str, Mapping[str, Any]] | None:
    """`nodes` of GET /cluster by id; None when nobody answers. On loopback first: from inside, a
    public name often leads nowhere."""
    port = urlsplit(url).port if url else None
    for base in (f"http://127.0.0.1:{port}", url) if port else (url,):
        found = _nodes(f"{base}/cluster") if base else None
        if found is not None:
            return found
    return None


def _nodes(address: str) -> dict[str, Mapping[str, Any]] | None:
    if not address.startswith(("http://", "https://")):
        return None
    try:
        with urlopen(address, timeout=ANSWER_WITHIN_S) as answer:
            report = json.loads(answer.read(ANSWER_BYTES_MAX))
        return {str(node["id"]): node for node in report["nodes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
