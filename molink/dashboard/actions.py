"""The operator's orders, as posts to the REST API, and the sentences that they end with."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from molink.client.api_client import ApiClient
from molink.dashboard.model.fields import count, flag, text

NODE_STATES = {"drain": "drains", "resume": "may serve again"}


class Actions:
    """Orders to one server. Each raises UserError with the server's sentence."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def drain(self, node_id: str) -> str:
        """Let a node hand over what it does, and give it nothing more."""
        return await self._node(node_id, "drain")

    async def resume(self, node_id: str) -> str:
        """Let a drained node serve again."""
        return await self._node(node_id, "resume")

    async def remove(self, node_id: str) -> str:
        """Throw a PC out for good."""
        gone = await self._post(f"/cluster/nodes/{quote(node_id, safe='')}/remove", {})
        sentence = f"{text(gone, 'name')} is removed."
        if flag(gone, "invite_usable"):
            invite = text(gone, "invite")
            sentence += f" Its owner could join anew: molink invite revoke {invite} prevents that."
        return sentence

    async def invite(self) -> tuple[str, int]:
        """A new invite: the command that its holder types, and how many PCs it lets in."""
        made = await self._post("/cluster/invites", {})
        return text(made, "command"), count(made, "uses")

    async def pause_intake(self, paused: bool) -> str:
        """Refuse new requests, or take them again."""
        await self._post("/cluster/intake", {"paused": paused})
        return "New requests are refused." if paused else "Requests are taken again."

    async def _node(self, node_id: str, order: str) -> str:
        done = await self._post(f"/cluster/nodes/{quote(node_id, safe='')}/{order}", {})
        return f"{text(done, 'name')} {NODE_STATES[order]}."

    async def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self._client.post(path, body)
        return answer if isinstance(answer, dict) else {}
