"""What a load must know of the model behind a server."""

from dataclasses import dataclass

from molink.client.api_client import ApiClient
from molink.errors import UserError

__all__ = ["ServedModel"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """As /v1/models tells it."""

    name: str
    max_model_len: int
    vocabulary_size: int

    @classmethod
    async def ask(cls, client: ApiClient) -> "ServedModel":
        """Raises UserError when the server is none of ours."""
        listed = await client.get("/v1/models")
        try:
            entry = listed["data"][0]
            return cls(entry["id"], entry["max_model_len"], entry["vocabulary_size"])
        except (KeyError, IndexError, TypeError):
            raise UserError(
                "the server's /v1/models tells no vocabulary size: give the --url of a MoLink "
                "server"
            ) from None
