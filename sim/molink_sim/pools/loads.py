"""Loads of Mooncake's Table 1, drawn: lengths by their means, beginnings that requests share.

The paper's data sets are not here, nor needed: what its figures turn on are mean lengths and the
share of a prompt that is cached. Lengths are lognormal. A share of each prompt is the beginning
that all requests of its group have; a request belongs to one of `GROUPS_LIVE` groups at random, and
a group ends after `uses` requests, so that with room for everything `shared * (1 - 1 / uses)` of
all tokens are cached.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from molink_scheduler.token_ids import token_bytes
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest

GROUPS_LIVE = 20
"""Groups whose requests come in between each other's: users who are there at a time."""


@dataclass(frozen=True, slots=True)
class DrawnLoad:
    """Lengths of a data set, and what its prompts share."""

    prompt_tokens: int
    answer_tokens: int
    shared: float = 0.0
    """Share of a prompt that its group has in common."""
    uses: int = 1
    """Requests of a group."""
    varied: float = 0.0
    """Deviation of lengths over their mean."""


LOADS: Mapping[str, DrawnLoad] = {
    "ArXiv": DrawnLoad(8_088, 229, varied=0.4),
    "L-Eval": DrawnLoad(19_019, 72, shared=0.9, uses=10, varied=0.4),
    "16k": DrawnLoad(16_384, 512, shared=0.55, uses=11),
    "32k": DrawnLoad(32_768, 512, shared=0.55, uses=11),
    "64k": DrawnLoad(65_536, 512, shared=0.55, uses=11),
    "128k": DrawnLoad(131_072, 512, shared=0.55, uses=11),
    "real": DrawnLoad(7_955, 194, shared=0.6, uses=6, varied=1.2),
}
"""Table 1 of the paper's third version: ~0 %, > 80 %, 50 % and ~50 % cached. How lengths vary it
does not say: 0.4 is what prompts of a public ArXiv set have, 1.2 those of its own public traces."""


def drawn(load: DrawnLoad, count: int, seed: int) -> list[CacheRequest]:
    """So many requests of a load, one a second in the mean, at random times."""
    random, numbers = Random(f"pools {seed}"), _Numbers()
    live = [_Group() for _ in range(GROUPS_LIVE)]
    found, now_s = list[CacheRequest](), 0.0
    for _ in range(count):
        now_s += random.expovariate(1.0)
        place = random.randrange(GROUPS_LIVE)
        group = live[place]
        if not group.left:
            group = live[place] = _new_group(load, random, numbers)
        group.left -= 1
        own = _length(load.prompt_tokens * (1 - load.shared), load.varied, random)
        prompt = max(1, len(group.blocks) * BLOCK_TOKENS + own)
        blocks = group.blocks + numbers.take(-(-prompt // BLOCK_TOKENS) - len(group.blocks))
        answer = max(2, _length(load.answer_tokens, load.varied, random))
        found.append(CacheRequest(now_s, prompt, answer, token_bytes(blocks)))
    return found


def paced(requests: Sequence[CacheRequest], rate: float) -> list[CacheRequest]:
    """Requests of `drawn` at `rate` a second."""
    return [replace(one, at_s=one.at_s / rate) for one in requests]


@dataclass(slots=True)
class _Group:
    blocks: tuple[int, ...] = ()
    left: int = 0


@dataclass(slots=True)
class _Numbers:
    next: int = 0

    def take(self, count: int) -> tuple[int, ...]:
        """Numbers of so many blocks that nobody has."""
        start, self.next = self.next, self.next + count
        return tuple(range(start, self.next))


def _new_group(load: DrawnLoad, random: Random, numbers: _Numbers) -> _Group:
    tokens = _length(load.prompt_tokens * load.shared, load.varied, random)
    return _Group(numbers.take(round(tokens / BLOCK_TOKENS)), load.uses)


def _length(mean: float, varied: float, random: Random) -> int:
    """A lognormal length with this mean and relative deviation."""
    if not varied or not mean:
        return round(mean)
    spread = math.log1p(varied * varied)
    return max(1, round(random.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread))))
