"""Contributions of this PC, night by night, in a file of its owner's own.

Time, tokens and bytes are the coordinator's count, which the PC asks for now and then; what has
come since the last question belongs to the night of now. A night is from noon to noon: an evening
and the small hours after it are one line, as owners think of them.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from molink.errors import ErrorGuard, UserError
from molink_agent.daemon.membership import Membership

GIVEN_FILE = "given.json"

NIGHTS_MAX = 400
"""Nights that are kept: a year and a month; 40 KB."""

ASK_EVERY_S = 600.0
"""Seconds between two questions to the coordinator: a thousand agents ask two a second."""

ASK_AGAIN_S = 30.0
"""Seconds after a question that was not answered, as before the PC is connected."""

GIVEN_PATH = "/agents/given"

ANSWER_WITHIN_S = 3.0
"""Seconds for the coordinator's answer: a status without it is better than one that takes long."""

ANSWER_BYTES_MAX = 4096
"""Three numbers with their names are under a hundred."""

COUNT_MAX = 10**18

log = logging.getLogger(__name__)


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    uptime_s: float = Field(default=0, ge=0, le=COUNT_MAX)
    """Seconds of serving, all devices together."""
    token_layers: int = Field(default=0, ge=0, le=COUNT_MAX)
    """Tokens times the layers that they passed here."""
    bytes_sent: int = Field(default=0, ge=0, le=COUNT_MAX)


class Totals(_Figures):
    """Work that the PC has given since it joined, by the coordinator's count."""

    def since(self, before: "Totals | None") -> "Totals":
        """Work that has come since `before`. Nothing where less is told than before: a coordinator
        that has lost its figures must not bring those of all other nights into this one."""
        if before is None:
            return Totals()
        news = {key: getattr(self, key) - getattr(before, key) for key in type(self).model_fields}
        return Totals() if min(news.values()) < 0 else Totals(**news)


class Night(_Figures):
    """Work that the PC gave from noon of one day to noon of the next."""

    begins: date

    def plus(self, given: _Figures) -> "Night":
        """The night with more that was given in it."""
        sums = {key: getattr(self, key) + getattr(given, key) for key in _Figures.model_fields}
        return self.model_copy(update=sums)


class GivenLedger(BaseModel):
    """Book of nights, oldest first, with the totals that it goes on from."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    totals: Totals | None = None
    """Totals as last told; None: never."""
    nights: tuple[Night, ...] = Field(default=(), max_length=NIGHTS_MAX)

    @classmethod
    def load(cls, data_dir: Path) -> "GivenLedger":
        """The ledger as it was saved, empty without a file; a damaged file is moved away. Raises
        OSError when the file is there and cannot be read now."""
        path = data_dir / GIVEN_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except ValidationError:
            log.warning("%s is damaged and is moved away: nights are counted anew", path)
            with suppress(OSError):
                path.replace(path.with_suffix(".damaged"))
            return cls()

    def save(self, data_dir: Path) -> None:
        """Replace the file as a whole. Raises OSError."""
        new = data_dir / f"{GIVEN_FILE}.{os.getpid()}.new"
        new.write_text(self.model_dump_json(), encoding="utf-8")
        new.replace(data_dir / GIVEN_FILE)

    def later(self, now: datetime, totals: Totals | None) -> "GivenLedger":
        """The ledger with what has come by now: new totals of the coordinator, None if it was not
        asked."""
        given = totals.since(self.totals) if totals is not None else Totals()
        nights, begins = {night.begins: night for night in self.nights}, night_of(now)
        if any(given.model_dump().values()):
            nights[begins] = nights.get(begins, Night(begins=begins)).plus(given)
        kept = [nights[begins] for begins in sorted(nights)][-NIGHTS_MAX:]
        return GivenLedger(totals=totals or self.totals, nights=tuple(kept))

    def last_night(self, now: datetime) -> Night | None:
        """The night that people mean in the morning, and until the next has begun to count; None:
        it gave nothing."""
        begins = (now - timedelta(days=1)).date()
        return next((night for night in self.nights if night.begins == begins), None)


def night_of(now: datetime) -> date:
    """The day on whose noon the night of `now` has begun."""
    return (now - timedelta(hours=12)).date()


@dataclass(slots=True)
class GivenRecorder:
    """Writer of an agent's ledger while the agent runs."""

    data_dir: Path
    ask: Callable[[], Totals | None]
    """The coordinator, in a thread; None where it does not answer."""

    async def run(self) -> None:
        """Run until cancelled. No coordinator's answer ends it: the agent serves without."""
        guard = ErrorGuard("Counting what this PC gives")
        while True:
            wait_s = ASK_AGAIN_S
            with guard:
                wait_s = await self.step()
            await asyncio.sleep(wait_s)

    async def step(self) -> float:
        """Ask the coordinator and write; return the seconds until it is time to do so again."""
        totals = await asyncio.to_thread(self.ask)
        if totals is None:
            return ASK_AGAIN_S
        try:
            ledger = GivenLedger.load(self.data_dir)
            ledger.later(datetime.now(), totals).save(self.data_dir)
        except OSError as error:
            log.warning("what was given cannot be written down: %s", error.strerror)
        return ASK_EVERY_S


def ask_totals(membership: Membership | None) -> Totals | None:
    """Work that all devices together have given, by the coordinator's own count. None when it
    cannot be asked."""
    if membership is None:
        return None
    try:
        given = json.loads(answer_of_coordinator(membership, GIVEN_PATH, ANSWER_BYTES_MAX))
        return Totals(**{key: given[key] for key in Totals.model_fields})
    except (UserError, OSError, HTTPException):
        return None
    except (ValueError, KeyError, TypeError, RecursionError):  # No such answer.
        return None


def answer_of_coordinator(membership: Membership, path: str, bytes_max: int) -> bytes:
    """The first bytes of what the coordinator tells this PC at a path. Raises UserError, OSError
    or HTTPException where it cannot be asked."""
    source, url = membership.weights, urlsplit(membership.url)
    connection = HTTPSConnection(
        url.hostname or "", url.port, timeout=ANSWER_WITHIN_S, context=source.tls.ssl_context()
    )
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {source.token}"})
        return connection.getresponse().read(bytes_max)
