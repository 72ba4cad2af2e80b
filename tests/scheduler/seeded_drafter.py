"""A drafter that knows the answers, and is right to a seeded depth; it checks what it is told."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from molink_scheduler.batch import DRAFTS_MAX, Span
from molink_scheduler.drafting.asks import Draft, DraftAsk, Drafted
from molink_scheduler.events import BatchReturned, SampledToken

MANNERS = ("right", "wrong", "depth", "short", "none", "stale", "any")


@dataclass
class SeededDrafter:
    """Drafter of one head, of one manner: always right, never, to a random depth, ..."""

    random: Random
    width: int
    manner: str
    slowest_s: float = 0.1
    vocabulary: int = 50_000
    told: dict[int, list[int]] = field(default_factory=dict)
    drafts: int = 0

    @classmethod
    def of(cls, seed: int, vocabulary: int = 50_000) -> "SeededDrafter":
        random = Random(f"drafter {seed}")
        width, manner = random.choice([1, 2, 4, 16]), random.choice(MANNERS)
        return cls(random, width, manner, random.choice([0.001, 0.1, 1.0]), vocabulary)

    def answers(
        self, asks: Iterable[DraftAsk], text_of: Callable[[int], Sequence[int]]
    ) -> Iterator[tuple[float, Drafted]]:
        """Answers, and after how many seconds they come; `text_of` a request, its prompt and whole
        answer, or nothing if it has ended."""
        for ask in asks:
            draft = self.answer(ask, text_of(ask.request_id) or ask.tokens)
            yield self.random.uniform(0.0, self.slowest_s), Drafted((draft,))

    def answer(self, ask: DraftAsk, text: Sequence[int]) -> Draft:
        told = self.told.get(ask.request_id, [])[: ask.start]
        assert len(told) == ask.start, "it was not told of all tokens"
        self.told[ask.request_id] = told = [*told, *ask.tokens]
        assert min(ask.width, ask.copies) >= 0 and ask.tokens
        assert 1 <= max(ask.width, ask.copies) <= DRAFTS_MAX
        assert text is ask.tokens or told == [*text[: len(told)]]
        drafts = tuple(self.guessed(text[ask.position : ask.position + ask.width]))
        self.drafts += len(drafts)
        behind = self.random.randint(1, 3) if self.manner == "stale" else 0
        return Draft(ask.request_id, ask.position - behind, drafts)

    def guessed(self, right: Sequence[int]) -> list[int]:
        manner = self.random.choice(MANNERS) if self.manner == "any" else self.manner
        if manner == "none" or not right:
            return []
        if manner == "short":
            return list(right[: self.random.randint(0, len(right))])
        depths = {"right": len(right), "wrong": 0, "stale": len(right)}
        depth = depths.get(manner, self.random.randint(0, len(right)))
        return [
            token if at < depth else (token + 1 + self.random.randrange(3)) % self.vocabulary
            for at, token in enumerate(right)
        ]

    def forget(self, request_id: int) -> None:
        self.told.pop(request_id, None)


@dataclass
class SeededTail:
    """Drafter of one tail, which sends home what may come behind the tokens that it draws."""

    drafter: SeededDrafter
    drafts: int = 0

    @classmethod
    def of(cls, seed: int, vocabulary: int = 50_000) -> "SeededTail":
        return cls(SeededDrafter.of(seed + 10**6, vocabulary))

    @property
    def width(self) -> int:
        return self.drafter.width

    def home(self, event: BatchReturned, text_of: Callable[[int], Sequence[int]]) -> BatchReturned:
        """The message with drafts for those who want some; `text_of` as for the head's."""
        drafts = tuple(self._drafts(event.spans, event.sampled, text_of))
        self.drafts += sum(len(ids) for _, ids in drafts)
        forced = tuple(one for one, _ in drafts if self.drafter.random.random() < 0.3)
        return replace(event, drafts=drafts, forced=forced)

    def _drafts(
        self,
        spans: Iterable[Span],
        sampled: Iterable[SampledToken],
        text_of: Callable[[int], Sequence[int]],
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        for span in spans:
            own = [token for token in sampled if token.request_id == span.request_id]
            assert 0 <= span.wants <= DRAFTS_MAX and (span.samples or not span.wants)
            if span.wants and own and not own[-1].finished:
                behind = span.known_end + len(own)
                right = text_of(span.request_id)[behind : behind + span.wants]
                yield span.request_id, tuple(self.drafter.guessed(right))


def terms_of(drafter: SeededDrafter | None, tail: SeededTail | None) -> dict[str, Any]:
    """Terms of a ring with these drafters."""
    widths = [one.width for one in (drafter, tail) if one is not None]
    return {
        "draft_width_max": max(widths, default=0),
        "drafts_at_head": drafter is not None,
        "drafts_at_tail": tail is not None,
    }
