"""Lenders are killed at random moments: does every answer stay as it is, and how long do they wait?

    python -m tools.experiments.room.lender_kills --out DIR

A ring of `molink serve` over a tiny random model in fp32 whose stages have room for a part of the
KV and lend the rest. At each kill two long requests run, of which a part lies at lenders, and a
short one of which nothing does; their answers are held against the library's own. The lender of one
stage is killed after a random time, perhaps while another one starts; together with the process of
a stage in some cases, and in others while nothing runs: then the ring has to notice by itself.
Every wait has a limit, and ends the run with a sentence and what the ring says of itself.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
import psutil

from molink.bench.served_ring import ServedRing, serve_ring
from molink.errors import MolinkError, UserError
from molink.workload.figures import percentile
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

LENDERS = "molink.lender."
"""Modules of the process that forks a stage's lenders, and so of them."""

OWN_TOKENS, LENT_TOKENS = 1024, 6144
VOCABULARY, WORDS = 97, range(3, 97)
LONG_LENGTHS, LONG_ANSWER = (700, 900, 1200, 1400), 40
SHORT_LENGTH, SHORT_ANSWER = 60, 80
NO_PART, FITS, LONGER = "no part there", "as long as one stage holds", "longer"
"""Requests by what they lose: nothing; what can be computed again at home; what waits until there
is a lender again."""

ANSWERING, IDLE, WITH_STAGE = "in answers", "idle", "with a stage"
KINDS = (ANSWERING, ANSWERING, IDLE, ANSWERING, WITH_STAGE)
"""What happens in turn."""

WHOLE_WITHIN_S, NOTICED_WITHIN_S, ANSWERED_WITHIN_S = 300.0, 120.0, 600.0
PROMPT_SHARE = 0.2
"""Of kills before the first tokens, to those while tokens come; and of the time of answers."""

POLL_S = 0.02
SETTLED_S = 1.2
"""Age of a lender of which a stage's report may tell: those come twice a second."""

GONE_ON = ("ring_resumed", "ring_serving")
"""Events of a ring that goes on, and of one that took the place of a ring without stages."""

EVENTS_TOLD = 12


@dataclass(slots=True)
class Asked:
    """One request, its answer in the library, and what came when."""

    prompt: list[int]
    expected: list[int]
    tokens: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def kind(self) -> str:
        """What it loses with a lender."""
        if len(self.prompt) == SHORT_LENGTH:
            return NO_PART
        return FITS if len(self.prompt) + len(self.expected) <= OWN_TOKENS else LONGER

    def pause_s(self, since_s: float) -> float | None:
        """The longest time between two of its tokens that ends after then; None: it was not
        running."""
        if not self.at_s or self.at_s[0] > since_s or self.at_s[-1] < since_s:
            return None
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return max(after - before for before, after in pairs if after > since_s)


@dataclass(slots=True)
class Kill:
    """What became of one kill."""

    kind: str
    stage: int
    wrong: list[str] = field(default_factory=list)
    """Answers that are others, or failed."""
    pauses_s: list[tuple[str, float]] = field(default_factory=list)
    """Of the requests that ran, by kind."""
    noticed_s: float | None = None
    """Until the ring went on without it, where nothing ran."""
    whole_s: float | None = None
    """Until its stage had a lender again, where nothing ran."""
    ring_lost: bool = False
    """Whether its stage was alone in its ring: answers under way end with a sentence then."""
    load: float = 0.0


@dataclass(slots=True)
class Trials:
    """Kills in one ring."""

    ring: ServedRing
    model: Any
    stages: int
    random: Random
    typical_s: float = 0.0
    """How long the answers take when nothing happens."""
    _known: dict[int, Asked] = field(default_factory=dict)

    async def run(self, kills: int) -> AsyncIterator[Kill]:
        """The kills, one after the other, and at first the same undisturbed."""
        for stage in range(self.stages):
            await self._whole({stage})
        started_s, calm = time.perf_counter(), Kill("none", 0)
        await self._answered(self._requests(), calm)
        if calm.wrong:
            raise UserError(f"Undisturbed answers are wrong: {calm.wrong}")
        self.typical_s = time.perf_counter() - started_s
        for number in range(kills):
            yield await self._killed(KINDS[number % len(KINDS)])

    async def _killed(self, kind: str) -> Kill:
        stage = self.random.choice(sorted(await self._whole(set(range(self.stages)))))
        kill = Kill(kind, stage)
        processes = await self._stages()
        kill.ring_lost = kind == WITH_STAGE and len(processes) == 1
        asked, since = self._requests(), await self._last_event()
        victims = [_lender_of(processes[stage])]
        if kind == WITH_STAGE:
            victims.append(psutil.Process(self.random.choice(processes)))
        if kind != IDLE:
            answering = asyncio.create_task(self._answered(asked, kill))
            await self._far(asked, self.random.uniform(-PROMPT_SHARE, 1.0))
        killed_s = time.perf_counter()
        for victim in filter(None, self.random.sample(victims, len(victims))):
            victim.kill()
        if kind == IDLE:
            await self._noticed(since)
            kill.noticed_s = time.perf_counter() - killed_s
            await self._whole({stage})
            kill.whole_s = time.perf_counter() - killed_s
            await self._answered(asked, kill)
        else:
            await answering
            await self._noticed(since)
            for one in asked:
                if (pause_s := one.pause_s(killed_s)) is not None:
                    kill.pauses_s.append((one.kind, pause_s))
        kill.load = os.getloadavg()[0]
        return kill

    async def _far(self, asked: Sequence[Asked], share: float) -> None:
        """Wait until so much of the answers has come; below 0: until a part of the time is over in
        which the first tokens come when nothing is cached."""
        if share < 0.0:
            await asyncio.sleep(self.typical_s * (PROMPT_SHARE + share))
            return
        wanted = share * sum(len(one.expected) for one in asked)

        async def far() -> bool:
            return sum(len(one.tokens) for one in asked) >= wanted

        what = f"answers do not come to {share:.0%} within {ANSWERED_WITHIN_S:.0f} s"
        await self._wait(far, ANSWERED_WITHIN_S, what)

    # -- requests -------------------------------------------------------------------------------

    def _requests(self) -> list[Asked]:
        lengths = self.random.sample(LONG_LENGTHS, 2)
        short = [self.random.choice(WORDS) for _ in range(SHORT_LENGTH)]
        return [*map(self._long, lengths), Asked(short, self._reference(short, SHORT_ANSWER))]

    def _long(self, length: int) -> Asked:
        """One of a few prompts: what is known of it is cached, here and in the ring."""
        if length not in self._known:
            random = Random(length)
            prompt = [random.choice(WORDS) for _ in range(length)]
            self._known[length] = Asked(prompt, self._reference(prompt, LONG_ANSWER))
        known = self._known[length]
        return Asked(known.prompt, known.expected)

    def _reference(self, prompt: list[int], tokens: int) -> list[int]:
        import torch

        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = self.model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)
        answer: list[int] = out[0, len(prompt) :].tolist()
        return answer

    async def _answered(self, asked: Sequence[Asked], kill: Kill) -> None:
        """Ask all at once and hold what comes against what is expected."""
        await asyncio.gather(*map(self._ask, asked))
        for one in asked:
            if one.tokens == one.expected and not one.error:
                continue
            same = sum(a == b for a, b in zip(one.tokens, one.expected, strict=False))
            if kill.ring_lost and one.error and same == len(one.tokens):
                continue
            what = f"{len(one.prompt)} tokens: {len(one.tokens)} came, {same} as expected"
            kill.wrong.append(f"{what}; {one.error}")

    async def _ask(self, one: Asked) -> None:
        fixed = {"temperature": 0.0, "ignore_eos": True, "stream": True}
        body = {"prompt_token_ids": one.prompt, "max_tokens": len(one.expected), **fixed}
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                async for event in self.ring.client.stream("/generate", body):
                    tokens = event.get("token_ids") or []
                    one.tokens += tokens
                    one.at_s += [time.perf_counter()] * len(tokens)
        except TimeoutError:
            have = f"{len(one.tokens)} of {len(one.expected)} tokens"
            what = f"an answer has {have} after {ANSWERED_WITHIN_S:.0f} s"
            raise await self._stands(what) from None
        except MolinkError as error:
            one.error = str(error)

    # -- the ring -------------------------------------------------------------------------------

    async def _stages(self) -> list[int]:
        (ring,) = (await self.ring.cluster())["rings"]
        return [stage["pid"] for stage in ring["stages"]]

    async def _last_event(self) -> int:
        return int((await self.ring.client.get("/cluster/events"))["next"])

    async def _noticed(self, since: int) -> None:
        """Wait until the ring has gone on after this event, or another one has taken its place."""

        async def noticed() -> bool:
            told = await self.ring.client.get(f"/cluster/events?after={since}")
            return any(one["kind"] in GONE_ON for one in told["events"])

        what = f"nobody has noticed that a lender is gone within {NOTICED_WITHIN_S:.0f} s"
        await self._wait(noticed, NOTICED_WITHIN_S, what)

    async def _whole(self, stages: set[int]) -> set[int]:
        """Wait until some of these stages have a lender, in a ring that serves: which."""

        async def are_whole() -> set[int]:
            report = await self.ring.cluster()
            if report["unready_reason"] is not None or len(report["rings"]) != 1:
                return set()
            return {
                place
                for place, one in enumerate(report["rings"][0]["stages"])
                if place in stages
                and one["kv_tokens_capacity"] == OWN_TOKENS + LENT_TOKENS
                and _lender_of(one["pid"]) is not None
            }

        what = f"stages {stages} have no lender within {WHOLE_WITHIN_S:.0f} s"
        found: set[int] = await self._wait(are_whole, WHOLE_WITHIN_S, what)
        return found

    async def _wait(self, done: Callable[[], Awaitable[Any]], within_s: float, what: str) -> Any:
        deadline_s = time.perf_counter() + within_s
        while not (found := await done()):
            if time.perf_counter() > deadline_s:
                raise await self._stands(what)
            await asyncio.sleep(POLL_S)
        return found

    async def _stands(self, what: str) -> UserError:
        """The error of a wait that is over, with what the ring says of itself."""
        events = (await self.ring.client.get("/cluster/events"))["events"][-EVENTS_TOLD:]
        told = [f"{one['kind']}: {one['text']}" for one in events]
        rings = (await self.ring.cluster())["rings"]
        requests = (await self.ring.client.get("/cluster/requests"))["requests"]
        running = [one for one in requests if one["finish_reason"] is None]
        return UserError("\n".join([f"The ring stands: {what}.", *told, f"{rings}", f"{running}"]))


def _lender_of(stage: int) -> psutil.Process | None:
    """The lender of a stage's process, which has had time to say that it is there."""
    with suppress(psutil.NoSuchProcess):
        for server in psutil.Process(stage).children():
            if LENDERS not in " ".join(server.cmdline()):
                continue
            for lender in server.children():
                is_alive = lender.status() != psutil.STATUS_ZOMBIE
                if is_alive and time.time() - lender.create_time() > SETTLED_S:
                    return lender
    return None


def _saved_model(directory: Path) -> Any:
    """A tiny random model with room for long prompts, saved and loaded."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5)
    ends = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=4096, **sizes, **heads, **ends
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


@experiment
@click.option("--kills", default=50, show_default=True)
@click.option("--stages", default=2, show_default=True, help="Of the ring.")
@click.option("--seed", default=0, show_default=True)
def main(out: Path, kills: int, stages: int, seed: int) -> None:
    """Kill lenders, and hold answers and pauses against those without."""
    done: list[Kill] = []
    try:
        asyncio.run(_run(out, kills, stages, seed, done))
    finally:
        _show(done)


def _show(done: Sequence[Kill]) -> None:
    pauses = [f"{kind}: pause {q}, s" for kind in (NO_PART, FITS, LONGER) for q in ("p50", "p95")]
    heads = ("kills", "number", "wrong", *pauses, "noticed p50, s", "another there p50, s")
    show(markdown_table(heads, [*_rows(done)]))


async def _run(out: Path, kills: int, stages: int, seed: int, done: list[Kill]) -> None:
    model = _saved_model(out / "model")
    room = ("--kv-tokens", str(OWN_TOKENS), "--kv-host-tokens", str(LENT_TOKENS))
    options = ("--nodes", str(stages), "--dtype", "float32", *room, "--cache-ram-gb", "1")
    async with serve_ring(str(out / "model"), options, seed, (8, 4)) as ring:
        async for kill in Trials(ring, model, stages, Random(seed)).run(kills):
            done.append(kill)
            click.echo(f"{len(done)}: {kill}", err=True)
            told = [asdict(one) for one in done]
            write_report(out, "lender_kills", {"seed": seed, "stages": stages, "kills": told})


def _rows(done: Sequence[Kill]) -> list[list[str]]:
    rows = []
    for kind in (*dict.fromkeys(KINDS), "all"):
        own = [one for one in done if kind in (one.kind, "all")]
        figures = list[tuple[list[float], int]]()
        for wanted in (NO_PART, FITS, LONGER):
            pauses_s = [pause for one in own for kind, pause in one.pauses_s if kind == wanted]
            figures += [(pauses_s, 50), (pauses_s, 95)]
        noticed_s = [one.noticed_s for one in own if one.noticed_s is not None]
        whole_s = [one.whole_s for one in own if one.whole_s is not None]
        figures += [(noticed_s, 50), (whole_s, 50)]
        cells = [f"{percentile(sorted(values), q):.2f}" if values else "" for values, q in figures]
        rows.append([kind, str(len(own)), str(sum(len(one.wrong) for one in own)), *cells])
    return rows


if __name__ == "__main__":
    main()
