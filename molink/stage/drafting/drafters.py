"""Drafters of a head: who answers which question, and whether they are of use.

The first drafter that has something to say answers: what is copied is right more often than what a
small model guesses, and costs nothing. A drafter that fails, or is wrong as only a wrong load is,
is off until the ring's next epoch; its questions are answered with nothing, and the ring goes on as
it would without.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from molink.stage.health.health_reports import HeadHealth
from molink.stage_protocol.health import DrafterHealth, StageHealth
from molink_scheduler.drafting.asks import Draft, DraftAsk, Drafted
from molink_scheduler.drafting.proposals import TAIL
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.stage.core import WorkSource

log = logging.getLogger(__name__)

JUDGED_TRIES = 200
"""Tries after which a drafter may be told from a wrong load: published pairs are right three times
in four or more, texts of another kind one time in three."""

Answer = TypeVar("Answer")


class Drafter(Protocol):
    """Drafter of one kind. It may raise: then it is off."""

    @property
    def name(self) -> str:
        """Name of the drafter, as people are told it."""

    @property
    def is_busy(self) -> bool:
        """Whether it has something to compute that nobody waits for."""

    @property
    def step_s(self) -> float:
        """Usual seconds of one more draft for all who ask; 0: next to none."""

    @property
    def share_min(self) -> float:
        """Share of its drafts that is right at least, if it was loaded well."""

    def learn(self, ask: DraftAsk) -> None:
        """Take in what is new of a request."""

    def begin(self, ask: DraftAsk) -> bool:
        """Whether it will answer, from one of its next steps; after `learn`."""

    def step(self) -> dict[int, tuple[int, ...]]:
        """Go on by one draft of each request; the answers that are whole."""

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""

    def clear(self) -> None:
        """Forget all requests, as a ring's new epoch begins."""


@dataclass(slots=True)
class _Watched:
    """One drafter, what came of it since the epoch began, and whether it is off."""

    drafter: Drafter
    figures: DrafterHealth
    is_off: bool = False

    def answer(self, call: Callable[[], Answer], nothing: Answer) -> Answer:
        """What a drafter answers; nothing where it is off, or fails."""
        if self.is_off:
            return nothing
        try:
            return call()
        except Exception as error:  # Whatever it was: the ring serves without.
            self.turn_off(f"{type(error).__name__}: {error}")
            return nothing

    def begins(self, ask: DraftAsk) -> bool:
        """Whether it will answer."""
        return self.answer(partial(self.drafter.begin, ask), nothing=False)

    def turn_off(self, why: str) -> None:
        self.is_off = True
        log.warning("Drafts of %s are off until the ring's next epoch: %s.", self.figures.name, why)

    def judged(self, drafts: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """Compare drafts with the tokens that came."""
        pairs = list(zip(drafts, tokens, strict=False))
        right = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
        was, tried = self.figures, min(len(pairs), right + 1)
        self.figures = replace(
            was,
            rounds=was.rounds + 1,
            drafts=was.drafts + len(drafts),
            tried=was.tried + tried,
            right=was.right + right,
        )
        tried, right = self.figures.tried, self.figures.right
        if not self.is_off and tried >= JUDGED_TRIES and right < self.drafter.share_min * tried:
            self.turn_off(
                f"{right} of {tried} were right, as if its weights were read wrongly or it were "
                "made for another model"
            )

    def begin_epoch(self) -> None:
        self.is_off, self.figures = False, DrafterHealth(self.figures.name)
        self.answer(self.drafter.clear, None)


@dataclass(slots=True)
class Drafters:
    """Drafters of one head, see `protocol.Drafting`."""

    _watched: tuple[_Watched, ...]
    trouble: str | None = None
    """Why a model that was to draft does not; None: it does, or there is none."""
    _asked: dict[int, DraftAsk] = field(init=False, default_factory=dict)
    _by: dict[int, _Watched] = field(init=False, default_factory=dict)
    """Who answers the question about each request."""
    _given: dict[int, tuple[_Watched, Draft]] = field(init=False, default_factory=dict)
    """The last answer about each request, of which it is not known yet what came true."""
    _has_warned: bool = field(init=False, default=False)
    """Whether it was said in this epoch that the tail's drafts are off."""

    @classmethod
    def of(cls, *drafters: Drafter) -> "Drafters":
        """Drafters in the order in which they are asked."""
        return cls(tuple(_Watched(one, DrafterHealth(one.name)) for one in drafters))

    def add(self, drafter: Drafter) -> None:
        """Ask another drafter, too, behind those before."""
        self._watched += (_Watched(drafter, DrafterHealth(drafter.name)),)

    @property
    def is_busy(self) -> bool:
        """Whether a question is not answered, or something is still to be computed."""
        return bool(self._asked) or any(
            not one.is_off and one.drafter.is_busy for one in self._watched
        )

    def after(self, other: HeadHealth) -> HeadHealth:
        """A stage's health with what another adds to it, and before other drafters what came of
        those that have guessed."""

        def with_drafters(health: StageHealth, source: WorkSource, now: float) -> StageHealth:
            own = tuple(one.figures for one in self._watched if one.figures.rounds)
            whole = other(health, source, now)
            self._warn_of_wrong_load(source)
            return replace(whole, drafters=(*own, *whole.drafters))

        return with_drafters

    def _warn_of_wrong_load(self, source: WorkSource) -> None:
        """Say once in an epoch that the tail's drafts are wanted no more."""
        if isinstance(source, HeadScheduler) and not self._has_warned:
            tally = source.decode.drafts.tallies.get(TAIL)
            if tally is not None and tally.is_hopeless:
                self._has_warned = True
                log.warning(
                    "Drafts of the tail are off until the ring's next epoch: %d of %d were right, "
                    "as if its layer's weights were read wrongly.",
                    *(tally.right, tally.tried),
                )

    def ask(self, asks: tuple[DraftAsk, ...]) -> None:
        """Begin to answer questions, beside those under way."""
        for ask in asks:
            self._judge(ask)
            self._asked[ask.request_id] = ask
            self._by.pop(ask.request_id, None)
            for one in self._watched:
                one.answer(partial(one.drafter.learn, ask), None)
            willing = (one for one in self._watched if one.begins(ask))
            if (first := next(willing, None)) is not None:
                self._by[ask.request_id] = first

    def take(self) -> Drafted | None:
        """Move the drafters on by one depth; what is answered behind it."""
        made: dict[int, tuple[int, ...]] = {}
        for one in self._watched:
            made |= one.answer(one.drafter.step, dict[int, tuple[int, ...]]())
        answers = tuple(
            self._answered(ask, made.get(ask.request_id, ()))
            for ask in list(self._asked.values())
            if ask.request_id in made or self._is_silent(ask.request_id)
        )
        step_s = max((one.drafter.step_s for one in self._watched if not one.is_off), default=0.0)
        return Drafted(answers, step_s) if answers else None

    def forget(self, request_id: int) -> None:
        """Forget a request, and its question; one that is unknown is fine."""
        for of_request in (self._asked, self._by, self._given):
            of_request.pop(request_id, None)
        for one in self._watched:
            one.answer(partial(one.drafter.forget, request_id), None)

    def begin_epoch(self) -> None:
        """Forget all requests, and try again who is off."""
        for of_request in (self._asked, self._by, self._given):
            of_request.clear()
        self._has_warned = False
        for one in self._watched:
            one.begin_epoch()

    def _is_silent(self, request_id: int) -> bool:
        by = self._by.get(request_id)
        return by is None or by.is_off

    def _answered(self, ask: DraftAsk, ids: tuple[int, ...]) -> Draft:
        by = self._by.pop(ask.request_id, None)
        name = "" if by is None else by.figures.name
        draft = Draft(ask.request_id, ask.position, ids[: ask.width_of(name)], name)
        del self._asked[ask.request_id]
        if by is not None and draft.token_ids:
            self._given[ask.request_id] = by, draft
        return draft

    def _judge(self, ask: DraftAsk) -> None:
        """Learn from the tokens of a question what came of the drafts before."""
        by, draft = self._given.pop(ask.request_id, (None, None))
        if by is not None and draft is not None and ask.start == draft.position:
            by.judged(draft.token_ids, ask.tokens)
