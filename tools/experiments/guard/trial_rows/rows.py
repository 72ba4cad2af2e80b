"""Numbers and words that a ring refuses, beside eight streams of others."""

import asyncio
import json
import shutil
import statistics
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from safetensors.torch import load_file, save_file

import molink.models
from tools.experiments.guard.cluster import GuardedCluster
from tools.experiments.guard.trial_rows.cluster import (
    READY_WITHIN_S,
    Member,
    Watched,
    events_of,
    ledger,
    names_serving,
    started,
    watching,
)
from tools.experiments.guard.trial_rows.trial import Outcome, Trial
from tools.experiments.guard.users import Seen
from tools.experiments.harness.processes import MOLINK

__all__ = ["ROWS"]

STREAMS = 8
TURNS, TURN_S, ASKED_EVERY_S = 5, 10.0, 3.0
FOUND_WITHIN_S = 240.0
SENDER = "mallory"
LONG_TOKENS = 100
LOUD = 0
"""Token whose numbers grow beyond fp16 in the fourth layer of `loud_model`: it pads, so that no
answer ever has it."""

BEYOND = 4096
"""The first token that the demo model has no row for."""

GAP_RATIO_MAX = 1.5
RINGS_MAX = 2
EVENTS_OF_LOSS = {"ring_ended", "ring_resumed", "stage_lost", "request_moved"}
UNCHECKED = "tools.experiments.guard.trial_rows.unchecked_coordinator"


@dataclass(slots=True)
class Asked:
    """What requests that are refused were answered."""

    statuses: dict[str, int] = field(default_factory=dict)
    sentences: set[str] = field(default_factory=set)

    async def ask(self, url: str, prompt: list[int]) -> None:
        """Ask for four tokens, and note what came."""
        body = {"prompt_token_ids": prompt, "max_tokens": 4, "ignore_eos": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/generate", json=body) as answer,
        ):
            text = await answer.text()
        status = str(answer.status)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if answer.status != 200:
            self.sentences.add(str(json.loads(text).get("error", {}).get("message", text))[:200])

    @property
    def text(self) -> str:
        """Statuses, each with how often it came."""
        return ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))


@dataclass(slots=True)
class Beside:
    """What streams saw, by turns: while nothing else was asked, and beside a bad prompt."""

    alone: list[Seen] = field(default_factory=list)
    beside: list[Seen] = field(default_factory=list)
    asked: Asked = field(default_factory=Asked)
    began_unix_s: float = field(default_factory=time.time)

    def losses(self, cluster: GuardedCluster) -> set[str]:
        """Kinds of events since then that tell of a ring which ended or lost somebody."""
        events = [one for one in events_of(cluster) if one["unix_s"] > self.began_unix_s]
        return EVENTS_OF_LOSS.intersection(one["kind"] for one in events)

    @property
    def gap_ratio(self) -> float:
        """Median p99 gap beside bad prompts, in those of the turns without."""
        return self._gap_ms(self.beside) / max(1e-3, self._gap_ms(self.alone))

    @property
    def gaps(self) -> str:
        """Both gaps, as the table tells them."""
        alone, beside = self._gap_ms(self.alone), self._gap_ms(self.beside)
        return f"p99 gap of others {alone:.0f} → {beside:.0f} ms ({self.gap_ratio:.2f} x)"

    def _gap_ms(self, windows: list[Seen]) -> float:
        return statistics.median(one.gap_p99_ms for one in windows)

    @property
    def silences_s(self) -> tuple[float, float]:
        """The longest time in which a stream saw nothing, alone and beside."""
        alone_s, beside_s = (max(s.silence_s for s in part) for part in (self.alone, self.beside))
        return alone_s, beside_s

    @property
    def broken_off(self) -> int:
        """Streams that did not reach their end."""
        return sum(sum(one.failures.values()) for one in (*self.alone, *self.beside))

    def report(self, **more: Any) -> dict[str, Any]:
        """All of it, and more, as it is kept."""
        return {
            "alone": [asdict(one) for one in self.alone],
            "beside": [asdict(one) for one in self.beside],
            "statuses": self.asked.statuses,
            "sentences": sorted(self.asked.sentences),
            **more,
        }


async def _by_turns(cluster: GuardedCluster, prompt: list[int]) -> Beside:
    """Ask a bad prompt in every second turn, so that both see the same mood of the machine."""
    found = Beside()
    await asyncio.sleep(TURN_S)
    await cluster.window()
    for _ in range(TURNS):
        await asyncio.sleep(TURN_S)
        found.alone.append(await cluster.window())
        until_s = time.monotonic() + TURN_S
        while time.monotonic() < until_s:
            await found.asked.ask(cluster.run.url, prompt)
            await asyncio.sleep(ASKED_EVERY_S)
        found.beside.append(await cluster.window())
    return found


async def _until_found(cluster: GuardedCluster, watched: Watched) -> Beside:
    """Ask long prompts until their sender rests and others serve, for four minutes at most."""
    found = Beside()
    await asyncio.sleep(TURN_S)
    await cluster.window()
    await asyncio.sleep(2 * TURN_S)
    found.alone.append(await cluster.window())
    until_s = time.monotonic() + FOUND_WITHIN_S
    for number in count():
        if time.monotonic() > until_s or _is_out(watched):
            break
        await found.asked.ask(cluster.run.url, _long(number))
        await asyncio.sleep(ASKED_EVERY_S)
    found.beside.append(await cluster.window())
    return found


def _long(number: int) -> list[int]:
    """A prompt that begins as no other."""
    return [5 + number, *(5 + at * 7 % 90 for at in range(LONG_TOKENS))]


# -- words without rows ----------------------------------------------------------------------------


async def refused_word() -> Outcome:
    """A word that the model has no row for, which the coordinator refuses."""
    return await _refused(MOLINK)


async def refused_by_head() -> Outcome:
    """The same, where the coordinator does not know how many words there are."""
    return await _refused(UNCHECKED)


async def _refused(coordinator: str) -> Outcome:
    members = [Member(one) for one in ("anna", "ben")]
    beside = started(members, "--split", "even", users=STREAMS, coordinator=(coordinator,))
    async with beside as cluster:
        await cluster.until(lambda report: bool(names_serving(report)), READY_WITHIN_S)
        seen = await _by_turns(cluster, [5, BEYOND])
        lost = seen.losses(cluster)
    alone_s, beside_s = seen.silences_s
    text = f"{seen.asked.text}; rings ended or moved: {', '.join(sorted(lost)) or 'none'}; longest "
    text += f"gap of the streams {alone_s:.2f} s without, {beside_s:.2f} s beside it"
    goes_on = not (lost or seen.broken_off) and set(seen.asked.statuses) == {"400"}
    found = seen.report(lost=sorted(lost))
    return Outcome(text, goes_on and beside_s <= GAP_RATIO_MAX * alone_s, found)


# -- numbers beyond fp16 ---------------------------------------------------------------------------


async def infinite() -> Outcome:
    """The second of four stages sends infinity in long prompts."""
    names = ("anna", SENDER, "carl", "dora")
    members = [Member(one, stage="infinite" if one == SENDER else "") for one in names]
    options = ("--split", "even", "--dtype", "float16")
    async with started(members, *options, users=STREAMS) as cluster:
        await cluster.until(lambda report: len(names_serving(report)) == len(names), READY_WITHIN_S)
        async with watching(cluster) as watched:
            seen = await _until_found(cluster, watched)
        events = ledger(cluster)
    with_sender = [serving for _, serving in watched.rings if SENDER in serving]
    text = (
        f"long prompts: {seen.asked.text}; the sender served in {len(with_sender)} rings, rested: "
    )
    text += f"{', '.join(watched.rested) or 'nobody'}; {seen.gaps}; broken off {seen.broken_off}"
    is_found = SENDER in watched.rested and len(with_sender) <= RINGS_MAX
    is_reached = is_found and not seen.broken_off and seen.gap_ratio <= GAP_RATIO_MAX
    more = {"rings": watched.rings, "rested": watched.rested, "events": events}
    return Outcome(text, is_reached, seen.report(**more))


def _is_out(watched: Watched) -> bool:
    """Whether the sender rests, and others serve."""
    serving = watched.rings[-1][1] if watched.rings else ()
    return SENDER in watched.rested and bool(serving) and SENDER not in serving


async def overflow() -> Outcome:
    """A prompt whose numbers grow beyond fp16 in the second of three stages."""
    members = [Member(one) for one in ("anna", "ben", "carl")]
    options = ("--split", "even", "--dtype", "float16")
    with TemporaryDirectory(prefix="molink-loud-") as folder:
        model = str(loud_model(Path(folder, "loud")))
        async with started(members, *options, model=model, users=STREAMS) as cluster:
            await cluster.until(lambda report: len(names_serving(report)) == 3, READY_WITHIN_S)
            async with watching(cluster) as watched:
                seen = await _by_turns(cluster, [5, LOUD, 7])
                lost = seen.losses(cluster)
    text = f"{seen.asked.text}; rings ended or moved: {', '.join(sorted(lost)) or 'none'}; rested: "
    text += f"{', '.join(watched.rested) or 'nobody'}; {seen.gaps}"
    is_alone = not (lost or watched.rested or seen.broken_off) and "200" not in seen.asked.statuses
    found = seen.report(lost=sorted(lost), rested=watched.rested)
    return Outcome(text, is_alone and seen.gap_ratio <= GAP_RATIO_MAX, found)


def loud_model(directory: Path) -> Path:
    """The demo model, whose fourth layer lets the row of one token grow beyond fp16, and adds a
    little to the rows of all others."""
    shutil.copytree(Path(molink.models.__file__).parent / "demo", directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.clone()
    embedding[LOUD] = 0.0
    embedding[LOUD, 0] = 60000.0
    layer = "model.layers.3."
    tensors[f"{layer}post_attention_layernorm.weight"][0] = 1.0
    for name in ("gate_proj", "up_proj"):
        tensors[f"{layer}mlp.{name}.weight"][0] = 0.0
        tensors[f"{layer}mlp.{name}.weight"][0, 0] = 2.0
    tensors[f"{layer}mlp.down_proj.weight"][0, 0] = 20.0
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return directory


ROWS = (
    Trial(
        "refused-word",
        "a prompt with a word that the model has no row for, among eight streams",
        "six rings in 45 s",
        "400; the eight never pause",
        refused_word,
    ),
    Trial(
        "refused-by-head",
        "the same, where the coordinator lets it pass and the head refuses it",
        "six rings in 45 s",
        "400; the eight never pause",
        refused_by_head,
    ),
    Trial(
        "infinite",
        "fp16: a member that sends inf",
        "two innocents rest, outages of 25 s",
        "only that request ends; sender found by its second ring; p99 gap of others at most 1.5 x",
        infinite,
    ),
    Trial(
        "overflow",
        "fp16: a prompt that overflows",
        "two innocents rest, outages of 25 s",
        "only that request ends; p99 gap of others at most 1.5 x",
        overflow,
    ),
)
