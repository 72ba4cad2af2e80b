"""The rings as a user may see them: who computes which layers, how busy, over which lines.

Made from the body of GET /cluster by naming what is let through, so that what is added there stays
with the operator until somebody decides otherwise here. Figures are as PCs report them: one that no
JSON can hold becomes null, or a single PC could break the page of everybody.
"""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["ring_view"]

COORDINATOR = "coordinator"
"""How GET /cluster names the coordinator as the end of a link; its own links are left out."""


def ring_view(report: Mapping[str, Any], unready_reason: str | None) -> dict[str, Any]:
    """The body of GET /ring, of GET /cluster's and the reason why nothing serves (None: it does).

    `{"model", "serving", "reason", "rings": [{"ring", "stages": [{"node", "layers", "busy_share"}],
    "links": [{"from", "to", "rate_mbps", "rtt_ms"}]}]}`; `layers` is [first, behind the last].
    """
    return {
        "model": report.get("model"),
        "serving": unready_reason is None,
        "reason": unready_reason,
        "rings": [_ring(ring) for ring in report.get("rings", ())],
    }


def _ring(ring: Mapping[str, Any]) -> dict[str, Any]:
    ends = ("from", "to")
    return {
        "ring": ring["ring"],
        "stages": [_picked(stage, "node", "layers", "busy_share") for stage in ring["stages"]],
        "links": [
            _picked(link, *ends, "rate_mbps", "rtt_ms")
            for link in ring["links"]
            if COORDINATOR not in (link["from"], link["to"])
        ],
    }


def _picked(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: _finite(entry[name]) for name in names}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
