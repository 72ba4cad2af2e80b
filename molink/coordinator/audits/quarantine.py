"""Quarantine: nodes that audits have found out, and the evidence against them.

Who is quarantined outlasts a restart of the coordinator; a node serves again only when the operator
resumes it. Each failed audit leaves a file with all that both rings reported and the tokens
themselves, so that it can be computed once more.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.control.private_file import write_private
from molink.control.registry.registry import Registry
from molink.coordinator.nodes.node_book import NodeBook
from molink.errors import MolinkError
from molink.printable import printable_line

QUARANTINED = "quarantined_nodes"
"""Name of the registry's setting that keeps them, as a JSON object of ids and sentences."""

EVIDENCE_FOLDER = "audits"

EVIDENCE_MAX = 100
"""Files that are kept, the newest: a file of a prompt of 2,000 tokens and 80 layers has 40 KB."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Folder of what failed audits have shown."""

    folder: Path

    def keep(self, unix_s: float, shown: Mapping[str, Any]) -> str:
        """Write one file; its path, or empty where it cannot be written: a full disk saves no
        liar."""
        path = self.folder / f"{unix_s:017.6f}.json"
        try:
            write_private(path, json.dumps(shown, indent=1) + "\n")
            for old in sorted(self.folder.glob("*.json"))[:-EVIDENCE_MAX]:
                old.unlink()
        except (MolinkError, OSError) as error:
            log.warning("The evidence of an audit is not kept: %s", error)
            return ""
        return str(path)


@dataclass(slots=True)
class Quarantine:
    """Keeper of the nodes that are quarantined."""

    book: NodeBook
    registry: Registry

    def __post_init__(self) -> None:
        self.book.quarantined |= _quarantined_before(self.registry)

    async def put(self, node_id: str, reason: str) -> None:
        """Keep a node from serving, at once. Raises ControlError when that cannot be written down;
        it holds until the coordinator is started anew then."""
        await self._change(node_id, reason)

    async def release(self, node_id: str) -> None:
        """Let a node serve again, if it was quarantined. Raises ControlError."""
        if node_id in self.book.quarantined:
            await self._change(node_id, "")

    async def _change(self, node_id: str, reason: str) -> None:
        held = self.book.quarantined
        if reason:
            held[node_id] = printable_line(reason)
        else:
            del held[node_id]
        node = self.book.nodes.get(node_id)
        if node is not None:
            before, node.quarantined = node.wants, held.get(node_id, "")
            node.changes += before != node.wants
            self.book.wake(node)
        await asyncio.to_thread(self.registry.set_setting, QUARANTINED, json.dumps(held))


def _quarantined_before(registry: Registry) -> dict[str, str]:
    """Nodes that were quarantined when the coordinator ran last, with the reasons."""
    try:
        kept = json.loads(registry.setting(QUARANTINED) or "{}")
    except ValueError:
        return {}
    return {str(one): str(why) for one, why in kept.items()} if isinstance(kept, dict) else {}
