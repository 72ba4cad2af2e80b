"""A drafter that knows the answers, and is right to a seeded depth; it checks what it is told."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from molink_scheduler.drafting.asks import Draft, DraftAsk, Drafted

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
        assert 1 <= ask.width <= self.width and ask.tokens
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
