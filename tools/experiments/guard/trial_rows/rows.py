"""Numbers and words that a ring refuses, beside eight streams of others."""

import asyncio
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from safetensors.torch import load_file, save_file

import molink.models
from tools.experiments.guard.cluster import READY_WITHIN_S, GuardedCluster
from tools.experiments.guard.trial_rows.cluster import (
    Member,
    events_of,
    names_serving,
    started,
    watching,
)
from tools.experiments.guard.trial_rows.trial import Outcome, Trial
from tools.experiments.guard.users import Seen
from tools.experiments.harness.processes import MOLINK

__all__ = ["ROWS"]

STREAMS = 8
BEFORE_S, DURING_S, ASKED_EVERY_S = 20.0, 60.0, 5.0
SENDER = "mallory"
LONG = [5 + at % 90 for at in range(80)]
LOUD = 0
"""Token whose numbers grow beyond fp16 in the fourth layer of `loud_model`: it pads, so that no
answer ever has it."""

BEYOND = 4096
"""The first token that the demo model has no row for."""

GAP_RATIO_MAX = 1.5
RINGS_MAX = 2
EVENTS_OF_LOSS = {"ring_ended", "ring_resumed", "stage_lost", "request_moved"}
UNCHECKED = ("tools.experiments.guard.trial_rows.unchecked_coordinator",)


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


async def _beside_streams(cluster: GuardedCluster, prompt: list[int]) -> tuple[Seen, Seen, Asked]:
    """What the streams saw before, and while the prompt was asked every five seconds."""
    await cluster.window()
    await asyncio.sleep(BEFORE_S)
    before, asked = await cluster.window(), Asked()
    for _ in range(int(DURING_S / ASKED_EVERY_S)):
        await asked.ask(cluster.run.url, prompt)
        await asyncio.sleep(ASKED_EVERY_S)
    return before, await cluster.window(), asked


def _gaps(before: Seen, during: Seen) -> tuple[float, str]:
    ratio = during.gap_p99_ms / before.gap_p99_ms if before.gap_p99_ms else float("inf")
    text = f"p99 gap of others {before.gap_p99_ms:.0f} → {during.gap_p99_ms:.0f} ms ({ratio:.2f} x)"
    return ratio, text


def _kinds(cluster: GuardedCluster) -> list[str]:
    return [one["kind"] for one in events_of(cluster)]


# -- words without rows ----------------------------------------------------------------------------


async def refused_prompt() -> Outcome:
    """A word that the model has no row for, refused by the coordinator, and by the head where the
    coordinator does not look."""
    texts, found, is_reached = [], dict[str, Any](), True
    for name, program in ("coordinator", (MOLINK,)), ("head", UNCHECKED):
        members = [Member(one) for one in ("anna", "ben")]
        beside = started(members, "--split", "even", users=STREAMS, coordinator=program)
        async with beside as cluster:
            await cluster.until(lambda report: bool(names_serving(report)), READY_WITHIN_S)
            before, during, asked = await _beside_streams(cluster, [5, BEYOND])
            lost = EVENTS_OF_LOSS.intersection(_kinds(cluster))
        texts.append(
            f"by the {name}: {asked.text}; longest gap of the streams "
            f"{before.silence_s:.2f} → {during.silence_s:.2f} s"
        )
        goes_on = not lost and not during.failures and set(asked.statuses) == {"400"}
        is_reached = is_reached and goes_on and during.silence_s <= 2 * before.silence_s
        found[name] = _report(before, during, asked, cluster_lost=sorted(lost))
    return Outcome("; ".join(texts), is_reached, found)


def _report(before: Seen, during: Seen, asked: Asked, **more: Any) -> dict[str, Any]:
    return {
        "before": asdict(before),
        "during": asdict(during),
        "statuses": asked.statuses,
        "sentences": sorted(asked.sentences),
        **more,
    }


# -- numbers beyond fp16 ---------------------------------------------------------------------------


async def infinite() -> Outcome:
    """The second of four stages sends infinity in long prompts."""
    names = ("anna", SENDER, "carl", "dora")
    members = [Member(one, stage="infinite" if one == SENDER else "") for one in names]
    options = ("--split", "even", "--dtype", "float16")
    async with started(members, *options, users=STREAMS) as cluster:
        await cluster.until(lambda report: len(names_serving(report)) == len(names), READY_WITHIN_S)
        async with watching(cluster) as watched:
            before, during, asked = await _beside_streams(cluster, LONG)
        events = [f"{one['kind']}: {one['text']}" for one in events_of(cluster)]
    with_sender = [serving for _, serving in watched.rings if SENDER in serving]
    ratio, gaps = _gaps(before, during)
    text = f"{asked.text}; served in {len(with_sender)} rings, rested: "
    text += f"{', '.join(watched.rested) or 'nobody'}; {gaps}; broken off {len(during.failures)}"
    is_found = SENDER in watched.rested and len(with_sender) <= RINGS_MAX
    is_reached = is_found and not during.failures and ratio <= GAP_RATIO_MAX
    more = {"rings": watched.rings, "rested": watched.rested, "events": events}
    return Outcome(text, is_reached, _report(before, during, asked, **more))


async def overflow() -> Outcome:
    """A prompt whose numbers grow beyond fp16 in the second of three stages."""
    members = [Member(one) for one in ("anna", "ben", "carl")]
    options = ("--split", "even", "--dtype", "float16")
    with TemporaryDirectory(prefix="molink-loud-") as folder:
        model = str(loud_model(Path(folder, "loud")))
        async with started(members, *options, model=model, users=STREAMS) as cluster:
            await cluster.until(lambda report: len(names_serving(report)) == 3, READY_WITHIN_S)
            async with watching(cluster) as watched:
                before, during, asked = await _beside_streams(cluster, [5, LOUD, 7])
            lost = EVENTS_OF_LOSS.intersection(_kinds(cluster))
    ratio, gaps = _gaps(before, during)
    text = f"{asked.text}; rings ended {len(lost)}, rested: {', '.join(watched.rested) or 'nobody'}"
    is_alone = not (lost or watched.rested or during.failures) and "200" not in asked.statuses
    more = {"lost": sorted(lost), "rested": watched.rested}
    found = _report(before, during, asked, **more)
    return Outcome(f"{text}; {gaps}", is_alone and ratio <= GAP_RATIO_MAX, found)


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
        "refused-prompt",
        "a prompt with a word that the model has no row for, among eight streams",
        "six rings in 45 s",
        "400; the eight never pause",
        refused_prompt,
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
