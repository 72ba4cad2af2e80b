"""Choice of the codec that suits a model and a ring, measured with the model's own text.

Does the model tolerate a codec? It first writes short texts from random first tokens. Then every
prefix of them is a prompt of its own, once with raw activations and once with the codec; the next
token and its likeliest rivals are compared. Prefixes rather than generated answers: a single
changed token would make all that follows another text, and nothing could be compared any more.

Does lossless packing pay? Every stage counts what the codec in use has made of its rows and how
long that took; every link measures its own rate. So that trial needs no figures about processors or
models: it is the ring's own traffic, on its own PCs, however busy they are. One codec serves all
links, and the slowest decides, because there a byte costs most; on a faster one packing costs
little, as its rows are the same.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.ring import Ring
from molink.serving.service import GenerationRequest, Generator
from molink.serving.token_events import TokenLogprob
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink_scheduler.codec_choice import CodecCheck, CodecDecision, LosslessTrial, choose_codec
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.request import LOGPROBS_MAX, SamplingParams

TEXTS = 32
TEXT_TOKENS = 12
"""Long enough to be the model's own language and not its surprise about a random first token."""

PREFIX_TOKENS_MIN = 4
"""Shorter prefixes say more about the random start than about the model. 32 x 8 prefixes are 256
positions, what `codec_choice` asks for."""

SEED = 20

REPORTS_WITHIN_S = 5.0
"""Ten times what a stage waits between two reports; a ring that is lost must not hold up its own
end."""


async def checked_codec(
    service: Generator, set_codec: Callable[[str], None], ring: Ring, wanted: str
) -> CodecDecision:
    """The codec for a ring that serves a model, after as many checks as `wanted` asks for."""
    if wanted in ("raw", "lossless"):
        return choose_codec(wanted, None)
    codec = "int8" if wanted == "auto" else wanted
    prompts = await CodecProbe.start(service)
    set_codec(codec)
    check, trial = await prompts.compare(codec), None
    if wanted == "auto" and not check.passed:
        set_codec("lossless")
        await prompts.send_texts()
        trial = await await_trial(ring.stages, ring.terms.upload_mbps)
    return choose_codec(wanted, check, trial)


@dataclass(slots=True)
class CodecProbe:
    """Comparison of a model's next tokens with and without a codec."""

    service: Generator
    _texts: list[tuple[int, ...]]
    _prefixes: list[tuple[int, ...]]
    _raw: list[TokenLogprob]

    @classmethod
    async def start(cls, service: Generator) -> "CodecProbe":
        """Write the texts and compute every prefix; the ring must be set to raw."""
        random = Random(SEED)
        vocabulary = service.card.vocabulary_size
        starts = [(random.randrange(vocabulary),) for _ in range(TEXTS)]
        texts = await asyncio.gather(*(_write(service, start) for start in starts))
        prefixes = [text[:n] for text in texts for n in range(PREFIX_TOKENS_MIN, len(text))]
        return cls(service, texts, prefixes, await _next_tokens(service, prefixes))

    async def send_texts(self) -> None:
        """Send every text once, for what the stages learn of packing it: prefixes of one text share
        rows, which would look easier to compress than users' prompts are."""
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


async def _write(service: Generator, start: tuple[int, ...]) -> tuple[int, ...]:
    """A short text of the model's own, sampled."""
    sampling = SamplingParams(max_tokens=TEXT_TOKENS - 1, seed=start[0])
    tokens = list(start)
    async for event in service.generate(GenerationRequest(start, sampling)):
        tokens += event.token_ids
    return tuple(tokens)


async def _next_tokens(
    service: Generator, prefixes: Sequence[tuple[int, ...]]
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


async def await_trial(
    stages: Sequence[AgentStage], upload_mbps: float | None
) -> LosslessTrial | None:
    """The trial, once every stage has reported the texts that went round; None when one does
    not, or when there is no link between stages."""
    try:
        async with asyncio.timeout(REPORTS_WITHIN_S):
            while True:
                healths = await asyncio.gather(*(stage.next_health() for stage in stages))
                trial = trial_of(healths, upload_mbps)
                if trial is not None or len(stages) < 2:
                    return trial
    except TimeoutError:
        return None


def trial_of(healths: Sequence[StageHealth], upload_mbps: float | None) -> LosslessTrial | None:
    """The trial of the slowest hop between stages; None while a figure is missing."""
    hops = [_hop(sender, receiver, upload_mbps) for sender, receiver in pairwise(healths)]
    known = [hop for hop in hops if hop is not None]
    if not known or len(known) < len(hops):
        return None
    return min(known, key=lambda hop: hop.link_bytes_per_s)


def _hop(
    sender: StageHealth, receiver: StageHealth, upload_mbps: float | None
) -> LosslessTrial | None:
    rate_mbps = min(_next_link(sender).rate_mbps, upload_mbps or math.inf)
    if not (rate_mbps > 0 and _is_known(sender.packed) and _is_known(receiver.unpacked)):
        return None
    return LosslessTrial(
        size_ratio=sender.packed.packed_bytes / sender.packed.raw_bytes,
        encode_bytes_per_s=sender.packed.raw_bytes / sender.packed.seconds,
        decode_bytes_per_s=receiver.unpacked.raw_bytes / receiver.unpacked.seconds,
        link_bytes_per_s=rate_mbps * 1e6 / 8,
    )


def _next_link(health: StageHealth) -> LinkReport:
    return next(link for link in health.links if link.name == "next")


def _is_known(figures: PackingHealth) -> bool:
    return figures.codec == "lossless" and figures.raw_bytes > 0 and figures.seconds > 0
