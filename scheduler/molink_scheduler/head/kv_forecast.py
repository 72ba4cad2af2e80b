"""Forecast of the KV that requests come to hold at once, by which newcomers are admitted.

A request is admitted with its prompt and grows with its answer. If all come in whose prompts fit,
more do than can stay: the newest are pushed out and computed again. To keep free what each may
generate would leave most of the KV empty, because answers mostly end long before.

So it is learned how long answers become: for each block of an answer, how many of those that came
so far have ended within it. An answer that its `max_tokens` or its user ended counts as one that
would have gone on (the product-limit estimate of Kaplan and Meier). Hence where all use up what
they ask for, their ends are known; where they end by themselves, it is how long these become that
counts. All grow by a token a round, or by as many as came of late where drafts come true. What they
hold some rounds from now is what each will hold then, times the chance that it is still there, and
a newcomer fits if that sum never is more than there is.

Rejected: one mean length for all (answers that ask for little end early, however long others
become), and a length drawn for each (LightLLM's past-future scheduler): the sum of chances is what
draws have on average, and the same each time.

Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.blocks import BLOCK_TOKENS

ANSWER_BLOCKS_MAX = 256
"""Beyond it an answer is taken to be as likely to end as there: 4,096 tokens."""

BLOCKS_AHEAD = (*range(8), *range(8, 16, 2), *range(16, 32, 4), *range(32, 64, 8), 64, 96, 128, 192)
"""Moments at which held blocks are summed, in blocks that each sequence has grown by: near ones
each, later ones as finely as they can be known."""

MOMENTS = tuple(
    (moment, ahead, ahead * BLOCK_TOKENS, until * BLOCK_TOKENS)
    for moment, (ahead, until) in enumerate(pairwise(BLOCKS_AHEAD))
)
"""Moments, each with a sequence's growth by then, in blocks and in tokens, and by the next one."""

UNSEEN_BLOCKS = 4
"""Assumed blocks of an answer about which nothing is known: half of those end by so many, and what
has come to twice as many lasts for twice as many more. The first users of a ring are admitted by
that."""

KEPT = 1 - 1 / 128
"""Share of what was learned that each end of an answer leaves: users change by the hour."""


@dataclass(slots=True)
class KvForecast:
    """Lengths of answers, and what follows for those that run."""

    _came: list[float] = field(init=False)
    """Answers that came through each of their blocks or ended there by themselves."""
    _ended: list[float] = field(init=False)
    """Answers that ended by themselves in each of their blocks; older ones count less."""
    _lasts: list[float] = field(init=False)
    """Chance that an answer has more than so many blocks."""

    def __post_init__(self) -> None:
        self._came = [1.0] * ANSWER_BLOCKS_MAX
        self._ended = [1 / (UNSEEN_BLOCKS + block + 1) for block in range(ANSWER_BLOCKS_MAX)]
        self._learn()

    def ended(self, sequence: Sequence, *, by_itself: bool) -> None:
        """An answer has ended, `by_itself` or because it was cut off."""
        through = (sequence.generated_tokens - by_itself) // BLOCK_TOKENS
        through = min(through, ANSWER_BLOCKS_MAX - 1)
        self._forget()
        for block in range(through):
            self._came[block] += 1
        if by_itself:
            self._came[through] += 1
            self._ended[through] += 1
        self._learn()

    def tokens_held(self, sequences: Iterable[Sequence]) -> list[float]:
        """Forecast of the tokens that these hold together, at each of the moments ahead: until the
        next one, who is still there at this one."""
        total = [0.0] * len(MOMENTS)
        for sequence in sequences:
            self._add(sequence, total)
        return total

    def _add(self, sequence: Sequence, total: list[float]) -> None:
        """Add what a sequence holds; a flood of users asks for it thousands of times a second."""
        lasts = self._lasts
        left = sequence.request.tokens_max - len(sequence.known)
        held = len(sequence.known) - sequence.spared_tokens
        block = min(sequence.generated_tokens // BLOCK_TOKENS, ANSWER_BLOCKS_MAX)
        now = lasts[block]
        moments = MOMENTS if sequence.pace == 1.0 else _paced(sequence.pace)
        for moment, ahead, tokens, until in moments:
            if tokens > left:
                break
            total[moment] += (held + (until if until < left else left)) * lasts[block + ahead] / now

    def _forget(self) -> None:
        """Make what was learned count less; what is taken for granted counts as one answer."""
        for block in range(ANSWER_BLOCKS_MAX):
            prior = 1 / (UNSEEN_BLOCKS + block + 1)
            self._came[block] = 1 + KEPT * (self._came[block] - 1)
            self._ended[block] = prior + KEPT * (self._ended[block] - prior)

    def _learn(self) -> None:
        lasts = [1.0]
        for came, ended in zip(self._came, self._ended, strict=True):
            lasts.append(lasts[-1] * (1 - ended / came))
        for _ in range(BLOCKS_AHEAD[-1]):
            lasts.append(lasts[-1] * (1 - self._ended[-1] / self._came[-1]))
        self._lasts = lasts


def _paced(pace: float) -> Iterator[tuple[int, int, float, float]]:
    """Moments of a sequence that has so many tokens a round."""
    for moment, ahead, tokens, until in MOMENTS:
        grown = min(round(ahead * pace), BLOCKS_AHEAD[-1])
        yield moment, grown, tokens * pace, until * pace
