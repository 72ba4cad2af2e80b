"""Body of a request for a batch."""

from typing import Annotated

from pydantic import Field

from molink.api.schemas import Body

Text = Annotated[str, Field(max_length=512)]


class BatchBody(Body):
    """Body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    """A number and s, m, h or d, such as 24h: after that, at most seven days, lines are not asked
    any more."""
    metadata: dict[Annotated[str, Field(max_length=64)], Text] | None = Field(None, max_length=16)
