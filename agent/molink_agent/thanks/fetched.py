"""Thanks from the coordinator: for how many people this PC has computed tonight, and a ranking.

The agent asks now and then and keeps the last answer in a file, which the owner's page and
`molink agent report` show. With each question it says whether the owner agrees to be named.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from molink.errors import ErrorGuard, UserError
from molink_agent.daemon.given import ASK_AGAIN_S, ASK_EVERY_S, COUNT_MAX, answer_of_coordinator
from molink_agent.daemon.membership import Membership, load_membership
from molink_agent.data_files import THANKS_FILE
from molink_agent.limits.limits_file import LimitsFile

THANKS_PATH = "/agents/thanks"

ANSWER_BYTES_MAX = 16_384
"""Eleven names of sixty characters, each of which JSON may write as twelve bytes, are 8 KB."""

NAME_CHARACTERS_MAX = 100

log = logging.getLogger(__name__)


class Rank(BaseModel):
    """Place of a PC whose owner agrees to be named."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(max_length=NAME_CHARACTERS_MAX)
    token_layers: int = Field(ge=0, le=COUNT_MAX)
    is_you: bool = False


class Thanks(BaseModel):
    """People who were helped since a time of the night, here and by the whole cluster."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    since_unix_s: float = Field(ge=0, le=COUNT_MAX)
    people: int = Field(ge=0, le=COUNT_MAX)
    answers: int = Field(ge=0, le=COUNT_MAX)
    cluster_people: int = Field(ge=0, le=COUNT_MAX)
    cluster_answers: int = Field(ge=0, le=COUNT_MAX)
    ranking: tuple[Rank, ...] = Field(default=(), max_length=20)

    @classmethod
    def load(cls, data_dir: Path) -> "Thanks | None":
        """The last answer; None: there is none that can be read."""
        try:
            return cls.model_validate_json((data_dir / THANKS_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def save(self, data_dir: Path) -> None:
        """Replace the file as a whole. Raises OSError."""
        new = data_dir / f"{THANKS_FILE}.{os.getpid()}.new"
        new.write_text(self.model_dump_json(), encoding="utf-8")
        new.replace(data_dir / THANKS_FILE)


def ask_thanks(membership: Membership | None, *, named: bool) -> Thanks | None:
    """What the coordinator says now; `named`: the owner agrees to be in the ranking. None where
    this PC has not joined, or the coordinator is of a version that does not know. Raises UserError,
    OSError or HTTPException where it cannot be asked."""
    if membership is None:
        return None
    path = f"{THANKS_PATH}?named=1" if named else THANKS_PATH
    try:
        return Thanks.model_validate_json(answer_of_coordinator(membership, path, ANSWER_BYTES_MAX))
    except ValidationError:
        return None


def ask_for_owner(data_dir: Path) -> Thanks | None:
    """The answer for an owner whose limits say whether to be named, by the membership of now."""
    limits = LimitsFile(data_dir)
    limits.reload()  # Of a file that is broken now nothing holds: nobody is named by mistake.
    return ask_thanks(load_membership(data_dir), named=limits.limits.in_ranking)


async def keep_thanks(data_dir: Path, ask: Callable[[], Thanks | None]) -> None:
    """Ask, in a thread, and write until cancelled. Nothing that comes ends it."""
    guard = ErrorGuard("Asking whom this PC has helped")
    while True:
        wait_s = ASK_AGAIN_S
        with guard, suppress(UserError, OSError, HTTPException):  # It starts anew, most likely.
            thanks = await asyncio.to_thread(ask)
            wait_s = ASK_EVERY_S
            if thanks is not None:
                _keep(thanks, data_dir)
        await asyncio.sleep(wait_s)


def _keep(thanks: Thanks, data_dir: Path) -> None:
    try:
        thanks.save(data_dir)
    except OSError as error:
        log.warning("whom this PC has helped cannot be written down: %s", error.strerror)
