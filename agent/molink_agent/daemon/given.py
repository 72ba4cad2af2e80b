"""What this PC has given, night by night, in a file of its owner's own.

Time, tokens and bytes are the coordinator's count, which the PC asks for now and then; what has
come since the last question belongs to the night of now. Energy is measured here. A night is from
noon to noon: an evening and the small hours after it are one line, as owners think of them.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from molink.errors import ErrorGuard, UserError
from molink_agent.daemon.membership import Membership
from molink_agent.probe.energy import EnergyMeter

__all__ = ["GIVEN_FILE", "GivenLedger", "GivenRecorder", "Night", "Totals", "ask_totals"]

GIVEN_FILE = "given.json"

NIGHTS_MAX = 400
"""Nights that are kept: a year and a month; 40 KB."""

ASK_EVERY_S = 600.0
"""Seconds between two questions to the coordinator: a thousand agents ask two a second."""

ASK_AGAIN_S = 30.0
"""Seconds after a question that was not answered, as before the PC is connected."""

MEASURE_EVERY_S = 10.0
"""Seconds between two measurements of the cards' energy."""

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
    energy_j: float | None = Field(default=None, ge=0, le=COUNT_MAX)
    """Energy of the lent cards while they held layers; None: no card told."""

    def plus(self, given: _Figures, energy_j: float | None) -> "Night":
        """The night with more that was given in it."""
        sums = {key: getattr(self, key) + getattr(given, key) for key in _Figures.model_fields}
        joules = None if energy_j is None else (self.energy_j or 0.0) + energy_j
        return self.model_copy(update=sums | ({} if joules is None else {"energy_j": joules}))


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

    def later(
        self, now: datetime, totals: Totals | None, energy_j: float | None = None
    ) -> "GivenLedger":
        """The ledger with what has come by now: new totals of the coordinator, None if it was not
        asked, and energy since the last call."""
        given = totals.since(self.totals) if totals is not None else Totals()
        nights, begins = {night.begins: night for night in self.nights}, night_of(now)
        if any(given.model_dump().values()) or energy_j:
            nights[begins] = nights.get(begins, Night(begins=begins)).plus(given, energy_j)
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
    busy_devices: Callable[[], Collection[str]]
    """Devices that hold a stage now."""
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    _energy_j: float | None = None
    """Energy that was measured and is not written yet."""
    _ask_at: float = 0.0

    async def run(self) -> None:
        """Run until cancelled; the last measurements are written then. No driver's answer and no
        coordinator's ends it: the agent serves without."""
        guard = ErrorGuard("Counting what this PC gives")
        try:
            while True:
                with guard:
                    await self.step(time.monotonic())
                await asyncio.sleep(MEASURE_EVERY_S)
        finally:
            self._write(None)

    async def step(self, now_s: float) -> None:
        """Measure, and ask and write when it is time to."""
        used = await asyncio.to_thread(self.meter.used_j, tuple(self.busy_devices()), now_s)
        if used is not None:
            self._energy_j = (self._energy_j or 0.0) + used
        if now_s >= self._ask_at:
            totals = await asyncio.to_thread(self.ask)
            self._ask_at = now_s + (ASK_AGAIN_S if totals is None else ASK_EVERY_S)
            self._write(totals)

    def _write(self, totals: Totals | None) -> None:
        if totals is None and self._energy_j is None:
            return
        try:
            ledger = GivenLedger.load(self.data_dir)
            ledger.later(datetime.now(), totals, self._energy_j).save(self.data_dir)
        except OSError as error:
            log.warning("what was given cannot be written down: %s", error.strerror)
        else:
            self._energy_j = None


def ask_totals(membership: Membership | None) -> Totals | None:
    """Work that all devices together have given, by the coordinator's own count. None when it
    cannot be asked."""
    if membership is None:
        return None
    try:
        given = json.loads(_answer_of_coordinator(membership))
        return Totals(**{key: given[key] for key in Totals.model_fields})
    except (UserError, OSError, HTTPException):
        return None
    except (ValueError, KeyError, TypeError, RecursionError):  # No such answer.
        return None


def _answer_of_coordinator(membership: Membership) -> bytes:
    source, url = membership.weights, urlsplit(membership.url)
    connection = HTTPSConnection(
        url.hostname or "", url.port, timeout=ANSWER_WITHIN_S, context=source.tls.ssl_context()
    )
    with closing(connection):
        connection.request("GET", GIVEN_PATH, headers={"Authorization": f"Bearer {source.token}"})
        return connection.getresponse().read(ANSWER_BYTES_MAX)
