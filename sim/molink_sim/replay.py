"""Replay of a log of the core, to see whether it decides now what it decided in the field.

    found = replay(Path("failed-stage.events").read_text().splitlines())

A stage's event log (`molink_scheduler.recording`) begins with a state of its core, and each line is
a call and what it decided. The calls are made again on a core in that state. They must decide the
same, and what raised must raise: then the failure is here, in a debugger or a test. The log of a
ring's recovery is played in the same way, event by event.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from molink.errors import UserError
from molink_scheduler.events import Refuse, RunBatch
from molink_scheduler.recording.event_log import FORMAT
from molink_scheduler.recording.recovery_log import RECOVERY_FORMAT
from molink_scheduler.recording.values import decode
from molink_scheduler.recording.writing import encode
from molink_scheduler.recovery.machine import recover
from molink_scheduler.recovery.state import RingRecovery
from molink_scheduler.stage.core import StageCore
from molink_scheduler.timing.next_decode import NO_ERRORS, ErrorSummary

__all__ = ["Finding", "Replay", "replay"]

VERBS = ("received", "next_step", "between_layers", "computed", "finished")
"""The calls that a log may hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that happened at one call of a log."""

    line: int
    """Line of the file, from 1."""
    at_s: float
    """Seconds of the stage's clock since the log began."""
    what: str


@dataclass(slots=True)
class Replay:
    """Result of a log that was played again."""

    calls_count: int = 0
    lasted_s: float = 0.0
    refusals_count: int = 0
    first_refusal: Finding | None = None
    """The first message to which the core objected."""
    error: Finding | None = None
    """The exception that the core raised, with which its calls end."""
    difference: Finding | None = None
    """The first call that decided something else than the log says; those behind it depend on it
    and are not made."""
    failure: str | None = None
    """Why the stage failed, as it wrote."""
    step_errors: ErrorSummary = NO_ERRORS
    """How far T_a was off where a decode step had begun, cases 1 and 2 of the paper's; newest."""
    round_errors: ErrorSummary = NO_ERRORS
    """The same of case 3, by the round."""


def replay(lines: Iterable[str]) -> Replay:
    """Make the calls of a log again. Raises UserError for what is no log of this version."""
    player: _Player | _RecoveryPlayer = _Player()
    for number, line in enumerate(lines, 1):
        try:
            raw = json.loads(line)
            if number == 1 and "recovery" in raw:
                player = _RecoveryPlayer()
            player.play(number, raw)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"Line {number} is not of a stage's event log: {error}.") from error
    if isinstance(player, _Player) and player.core is None:
        raise UserError("The file holds no event log of a stage.")
    if isinstance(player, _Player) and player.core is not None:
        errors = player.core.forecast.errors
        player.found.step_errors = ErrorSummary.of(errors.steps)
        player.found.round_errors = ErrorSummary.of(errors.rounds)
    return player.found


@dataclass(slots=True)
class _RecoveryPlayer:
    """Ring whose recovery a log speaks of."""

    found: Replay = field(default_factory=Replay)
    state: RingRecovery | None = None
    _began_at: float = 0.0

    def play(self, number: int, raw: Any) -> None:
        """Take the event of one line in again and compare what was to be done."""
        if self.found.difference is not None:
            return
        if self.state is None:
            self._begin(raw)
            return
        at, event, logged = raw
        self.found.calls_count += 1
        self.found.lasted_s = at - self._began_at
        self.state, told = recover(self.state, decode(event), at)
        if json.loads(json.dumps(encode(told))) != logged:
            what = f"{decode(event)} leads to {told}, led to {decode(logged)}"
            self.found.difference = Finding(number, self.found.lasted_s, what)

    def _begin(self, raw: Any) -> None:
        if raw["format"] != RECOVERY_FORMAT:
            known = f"this version reads {RECOVERY_FORMAT}"
            raise UserError(f"The log has format {raw['format']}, {known}.")
        self.state, self._began_at = decode(raw["recovery"]), raw["at"]


@dataclass(slots=True)
class _Player:
    """The core that a log speaks of."""

    found: Replay = field(default_factory=Replay)
    core: StageCore | None = None
    _began_at: float = 0.0
    _runs: dict[int, RunBatch] = field(default_factory=dict)
    """The last batch of each class that was to be computed."""

    def play(self, number: int, raw: Any) -> None:
        """Make the call of one line again and compare its decisions."""
        if isinstance(raw, dict) and "failed" in raw:
            self.found.failure = raw["failed"]
        elif self.found.difference is not None or self.found.error is not None:
            return  # What follows depends on it.
        elif isinstance(raw, list):
            self._call(number, *raw)
        elif raw["format"] != FORMAT:
            raise UserError(f"The log has format {raw['format']}, this version reads {FORMAT}.")
        else:
            self._begin(number, decode(raw["core"]), raw["at"], is_new=raw.get("new", False))

    def _begin(self, number: int, core: Any, at: float, *, is_new: bool) -> None:
        if not isinstance(core, StageCore):
            raise ValueError("a log begins with a core")
        if self.core is None:
            self._began_at = at
        elif not is_new and encode(self.core) != encode(core):
            what = "the calls do not lead to the state that the stage was in"
            self.found.difference = self._finding(number, what)
        self.core = core

    def _call(self, number: int, verb: str, raw_arguments: list[Any], *logged: Any) -> None:
        if self.core is None or verb not in VERBS:
            raise ValueError(f"there is no core yet, or no call {verb!r}")
        arguments = [decode(one) for one in raw_arguments]
        if verb in ("computed", "finished"):
            arguments[0] = self._runs[arguments[0]]
        self.found.calls_count += 1
        self.found.lasted_s = arguments[-1] - self._began_at
        try:
            decided = getattr(self.core, verb)(*arguments)
        except Exception as error:  # Whatever the core raised in the field, it raises here.
            self._raised(number, verb, error, logged)
        else:
            self._compare(number, verb, decided, logged)

    def _raised(self, number: int, verb: str, error: Exception, logged: tuple[Any, ...]) -> None:
        text = f"{verb} raised {type(error).__name__}: {error}"
        self.found.error = self._finding(number, text)
        if logged:
            self.found.difference = self._finding(number, f"{text}; it did not in the field")

    def _compare(self, number: int, verb: str, decided: Any, logged: tuple[Any, ...]) -> None:
        if not logged:
            self.found.difference = self._finding(number, f"{verb} did not return in the field")
        elif json.loads(json.dumps(encode(decided))) != logged[0]:
            was = decode(logged[0])
            self.found.difference = self._finding(number, f"{verb} decided {decided}, was {was}")
        for decision in decided if isinstance(decided, tuple | list) else ():
            match decision:
                case RunBatch(batch):
                    self._runs[batch.batch_class] = decision
                case Refuse(reason):
                    self._refused(number, reason)

    def _refused(self, number: int, reason: str) -> None:
        self.found.refusals_count += 1
        if self.found.first_refusal is None:
            self.found.first_refusal = self._finding(number, reason)

    def _finding(self, number: int, what: str) -> Finding:
        return Finding(number, self.found.lasted_s, what)
