"""Bodies of requests for files and batches."""

from typing import Annotated, Literal

from pydantic import Field

from molink.api.openai.batches.store import KEPT_S
from molink.api.schemas import Body, Part

Text = Annotated[str, Field(max_length=512)]


EXPIRES_S_MIN = 3600
"""Least seconds that a file is kept, as with OpenAI."""


class ExpiresAfter(Part):
    """Time at which a file is removed."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=EXPIRES_S_MIN, le=KEPT_S)


class BatchBody(Body):
    """Body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    """A number and s, m, h or d, such as 24h: after that, at most seven days, lines are not asked
    any more."""
    output_expires_after: ExpiresAfter | None = None
    """When the files with its answers are removed; None: after 30 days."""
    metadata: dict[Annotated[str, Field(max_length=64)], Text] | None = Field(None, max_length=16)
