"""Does this model tolerate a codec? Its own text, computed by the ring with and without it.

The model first writes short texts from random first tokens. Then every prefix of them is a prompt
of its own, once with raw activations and once with the codec; the next token and its likeliest
rivals are compared. Prefixes rather than generated answers: a single changed token would make all
that follows another text, and nothing could be compared any more.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from molink.serving.service import GenerationRequest, GenerationService, TokenLogprob
from molink_scheduler.codec_choice import CodecCheck
from molink_scheduler.request import LOGPROBS_MAX, SamplingParams

__all__ = ["CodecProbe"]

TEXTS = 32
TEXT_TOKENS = 12
"""Long enough to be the model's own language and not its surprise about a random first token."""

PREFIX_TOKENS_MIN = 4
"""Shorter prefixes say more about the random start than about the model. 32 x 8 prefixes are 256
positions, what `codec_choice` asks for."""

SEED = 20


@dataclass(slots=True)
class CodecProbe:
    """Runs the same prompts through a service with and without a codec."""

    service: GenerationService
    _texts: list[tuple[int, ...]]
    _prefixes: list[tuple[int, ...]]
    _raw: list[TokenLogprob]

    @classmethod
    async def start(cls, service: GenerationService) -> "CodecProbe":
        """Write the texts and compute every prefix; the ring must be set to raw."""
        random = Random(SEED)
        vocabulary = service.card.vocabulary_size
        starts = [(random.randrange(vocabulary),) for _ in range(TEXTS)]
        texts = await asyncio.gather(*(_write(service, start) for start in starts))
        prefixes = [text[:n] for text in texts for n in range(PREFIX_TOKENS_MIN, len(text))]
        return cls(service, texts, prefixes, await _next_tokens(service, prefixes))

    async def send_texts(self) -> None:
        """Let every text go round once, for what the stages learn of packing it: prefixes of one
        text share rows, which would look easier to compress than anybody's prompts are."""
        await _next_tokens(self.service, self._texts)

    async def compare(self, codec: str) -> CodecCheck:
        """Compute every prefix again; the ring must be set to `codec`."""
        packed = await _next_tokens(self.service, self._prefixes)
        agreed = sum(a.token_id == b.token_id for a, b in zip(self._raw, packed, strict=True))
        return CodecCheck(
            codec=codec,
            greedy_agreement=agreed / len(packed),
            logits_error=_logits_error(self._raw, packed),
            tokens=len(packed),
        )


async def _write(service: GenerationService, start: tuple[int, ...]) -> tuple[int, ...]:
    """A short text of the model's own, sampled."""
    sampling = SamplingParams(max_tokens=TEXT_TOKENS - 1, seed=start[0])
    tokens = list(start)
    async for event in service.generate(GenerationRequest(start, sampling)):
        tokens += event.token_ids
    return tuple(tokens)


async def _next_tokens(
    service: GenerationService, prefixes: Sequence[tuple[int, ...]]
) -> list[TokenLogprob]:
    """The likeliest next token of each prefix, with its rivals."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=LOGPROBS_MAX)

    async def one(prefix: tuple[int, ...]) -> TokenLogprob:
        events = [event async for event in service.generate(GenerationRequest(prefix, sampling))]
        return events[0].logprobs[0]

    return list(await asyncio.gather(*(one(prefix) for prefix in prefixes)))


def _logits_error(raw: Sequence[TokenLogprob], packed: Sequence[TokenLogprob]) -> float:
    """Root mean square change of the likeliest tokens' log-probabilities over their spread."""
    changes: list[float] = []
    spreads: list[float] = []
    for before, after in zip(raw, packed, strict=True):
        now = dict(after.top)
        values = [value for _, value in before.top]
        mean = sum(values) / len(values)
        spreads += [(value - mean) ** 2 for value in values]
        changes += [(now[token] - value) ** 2 for token, value in before.top if token in now]
    if not changes or not spreads:
        return math.nan
    return math.sqrt((sum(changes) / len(changes)) / (sum(spreads) / len(spreads)))
