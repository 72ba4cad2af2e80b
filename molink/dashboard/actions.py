"""The operator's orders, as posts to the REST API, and the sentences that they end with."""

from typing import TypeVar
from urllib.parse import quote

from molink.client.api_client import ApiClient
from molink.report.orders import IntakeChanged, InviteMade, NodeOrdered
from molink.report.plain import Json, from_plain

T = TypeVar("T")

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
        gone = await self._post(_node_path(node_id, "remove"), {}, NodeOrdered)
        sentence = f"{gone.name} is removed."
        if gone.invite_usable:
            ending = f"molink invite revoke {gone.invite} prevents that."
            sentence += f" Its owner could join anew: {ending}"
        return sentence

    async def invite(self) -> InviteMade:
        """Make a new invite."""
        return await self._post("/cluster/invites", {}, InviteMade)

    async def pause_intake(self, paused: bool) -> str:
        """Refuse new requests, or take them again."""
        await self._post("/cluster/intake", {"paused": paused}, IntakeChanged)
        return "New requests are refused." if paused else "Requests are taken again."

    async def _node(self, node_id: str, order: str) -> str:
        done = await self._post(_node_path(node_id, order), {}, NodeOrdered)
        return f"{done.name} {NODE_STATES[order]}."

    async def _post(self, path: str, body: Json, answer: type[T]) -> T:
        return from_plain(answer, await self._client.post(path, body))


def _node_path(node_id: str, order: str) -> str:
    return f"/cluster/nodes/{quote(node_id, safe='')}/{order}"
