"""Five times as many requests as a ring can answer: what becomes of those that it takes?

    python -m tools.experiments.ring.overload --out DIR

`molink serve` over three stages with emulated links. First the best: so many users, each asking
again when answered, and how many tokens a second come of answers that are there in time. Then
requests come at random, at five times that rate, whatever becomes of them. *Goodput* is again the
tokens of answers in time; a request is refused (429) or answered, anything else makes the run void.
Before and after it a prompt is sent now and then: the ring is *whole again* with the first of those
from which on all have their first token about as soon as before.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click

from molink.bench.served_ring import ServedRing, serve_ring
from molink.client.api_client import RefusedError
from molink.errors import UserError
from molink.transport.sockets import raise_file_limit
from tools.experiments.guard.users import percentile
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    show,
    write_report,
)

__all__ = ["main"]

USERS = (24, 32, 48)
"""That are tried for the best."""

SEARCH_S, SETTLE_S = 20.0, 5.0
"""Of each of them, and what of it is left out at the begin."""

TIMES = 5.0
"""The rate of requests, of the one that the best can answer."""

LATE_S = 10.0
"""In time is an answer within this and twice as long as it takes alone."""

PROBES_BEFORE, PROBES_S, PROBE_EVERY_S = 3, 15.0, 0.5
"""Before the load; after it, for so long and so often."""

PROBE_TOKENS = 4
"""Of the answer to one after it: they are no load."""

AGAIN_S = 1.0
"""After which a user of the search asks again who was refused."""

WHOLE_TIMES, WHOLE_S = 1.5, 0.05
"""How much longer than before it a first token may take after it, by factor and in seconds."""

OK_STATUS = 200
BUSY_STATUS = 429


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what became of it."""

    at_s: float
    status: int
    first_s: float
    """Until the first token, or the refusal."""
    whole_s: float
    tokens: int


@dataclass(slots=True)
class Users:
    """Those who ask one server for answers of half to one and a half times a length."""

    ring: ServedRing
    input_tokens: int
    output_tokens: int
    done: list[Asked] = field(default_factory=list)

    async def ask(self, output_tokens: int | None = None) -> Asked:
        """Send one request, for an answer of a random length or of so many tokens; what became of
        it. Raises UserError for anything but an answer or a refusal."""
        mean = self.output_tokens
        length = output_tokens or self.ring.random.randint(mean // 2, mean + mean // 2)
        planned = self.ring.request(self.input_tokens, length)
        body = {
            "prompt_token_ids": planned.prompt_token_ids,
            "max_tokens": planned.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        at_s, first_s, tokens = time.perf_counter(), 0.0, 0
        status = OK_STATUS
        try:
            async for event in self.ring.client.stream("/generate", body):
                first_s = first_s or time.perf_counter() - at_s
                tokens += len(event["token_ids"])
        except RefusedError as error:
            if error.status != BUSY_STATUS:
                raise
            status = error.status
        whole_s = time.perf_counter() - at_s
        asked = Asked(at_s, status, first_s or whole_s, whole_s, tokens)
        if status == OK_STATUS and tokens < length:
            raise UserError(f"an answer ended after {tokens} of {length} tokens")
        self.done.append(asked)
        return asked

    def goodput(self, start_s: float, end_s: float, bound_s: float) -> float:
        """Tokens a second of answers in time that ended between two times."""
        ended = (one for one in self.done if start_s <= one.at_s + one.whole_s < end_s)
        return sum(one.tokens for one in ended if one.whole_s <= bound_s) / (end_s - start_s)


@experiment
@click.option("--model", default="demo", show_default=True)
@click.option("--link", metavar="MBPS:MS", default="100:30", show_default=True, help="Emulated.")
@click.option("--seconds", default=180.0, show_default=True, help="Of overload; 0: search only.")
@click.option("--best", type=float, help="Requests a second, as found before; else searched.")
@click.option("--input-tokens", default=32, show_default=True)
@click.option("--output-tokens", default=64, show_default=True)
@click.option("--serve-options", default="", help="Further options of `molink serve`.")
@click.option("--name", default="overload", show_default=True, help="Of the JSON.")
def main(out: Path, name: str, **options: Any) -> None:
    """Find the best goodput of a ring, then offer it five times as much."""
    raise_file_limit()
    figures = asyncio.run(_measured(**options))
    write_report(out, "overload", {"options": options, **figures}, name)
    show(table(figures))


async def _measured(
    model: str,
    link: str,
    seconds: float,
    best: float | None,
    input_tokens: int,
    output_tokens: int,
    serve_options: str,
) -> dict[str, Any]:
    served = ("--nodes", "3", "--link", link, *serve_options.split())
    async with serve_ring(model, served, 0, (600, 8)) as ring:
        users = Users(ring, input_tokens, output_tokens)
        alone = [await users.ask(output_tokens) for _ in range(PROBES_BEFORE)][1:]
        before_s = statistics.median(one.first_s for one in alone)
        bound_s = LATE_S + 2 * statistics.median(one.whole_s for one in alone)
        figures: dict[str, Any] = {"alone_first_s": before_s, "bound_s": bound_s}
        if best is None:
            searched = {count: await _closed(users, count, bound_s) for count in USERS}
            figures["searched"] = searched
            best = max(row["goodput"] for row in searched.values()) / output_tokens
        figures["best_requests_per_s"], figures["best"] = best, best * output_tokens
        if seconds:
            figures |= await _overloaded(users, TIMES * best, seconds, bound_s, before_s)
            figures["ratio"] = figures["goodput"] / figures["best"]
        return figures


async def _closed(users: Users, count: int, bound_s: float) -> Figures:
    """So many users who ask again when answered."""
    users.done.clear()
    began_s = time.perf_counter()

    async def user() -> None:
        while time.perf_counter() < began_s + SEARCH_S:
            if (await users.ask()).status == BUSY_STATUS:
                await asyncio.sleep(AGAIN_S)

    await asyncio.gather(*(user() for _ in range(count)))
    found = users.goodput(began_s + SETTLE_S, began_s + SEARCH_S, bound_s)
    refused = sum(one.status == BUSY_STATUS for one in users.done)
    click.echo(f"{count} users: {found:.0f} tokens/s, {refused} refused", err=True)
    return {"goodput": found, "refused": float(refused)}


async def _overloaded(
    users: Users, rate: float, seconds: float, bound_s: float, before_s: float
) -> dict[str, Any]:
    users.done.clear()
    began_s, random = time.perf_counter(), Random(1)
    async with asyncio.TaskGroup() as group:
        at_s = began_s
        while at_s < began_s + seconds:
            await users.ring.sleep_until(at_s)
            group.create_task(users.ask())
            at_s += random.expovariate(rate)
        ended_s = time.perf_counter()
        await _probe(users, ended_s)
    probes = [one for one in users.done if one.at_s >= ended_s]
    load = [one for one in users.done if one.at_s < ended_s]
    refusals = [one.first_s for one in load if one.status == BUSY_STATUS]
    answers = [one for one in load if one.status == OK_STATUS]
    late = sum(one.whole_s > bound_s for one in answers)
    return {
        "offered_per_s": len(load) / seconds,
        "goodput": users.goodput(began_s + LATE_S, ended_s, bound_s),
        "answered": len(answers),
        "late": late,
        "first_p50_s": percentile([one.first_s for one in answers], 0.5),
        "first_p99_s": percentile([one.first_s for one in answers], 0.99),
        "refused": len(refusals),
        "refusal_p50_s": percentile(refusals, 0.5) if refusals else 0.0,
        "refusal_p99_s": percentile(refusals, 0.99) if refusals else 0.0,
        "refusal_most_s": max(refusals, default=0.0),
        "whole_after_s": whole_after_s(probes, ended_s, before_s),
        "probes": [(one.at_s - ended_s, one.status, one.first_s) for one in probes],
    }


async def _probe(users: Users, ended_s: float) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(int(PROBES_S / PROBE_EVERY_S)):
            await users.ring.sleep_until(ended_s + number * PROBE_EVERY_S)
            group.create_task(users.ask(PROBE_TOKENS))


def whole_after_s(probes: list[Asked], ended_s: float, before_s: float) -> float | None:
    """From the load's end until a request was sent from which on all were answered as before it;
    None: the last one was not."""
    within_s = max(WHOLE_TIMES * before_s, before_s + WHOLE_S)
    after_s = None
    for one in sorted(probes, key=lambda probe: -probe.at_s):
        if one.status != OK_STATUS or one.first_s > within_s:
            break
        after_s = one.at_s - ended_s
    return after_s


def table(figures: dict[str, Any]) -> str:
    """A line for each figure."""
    rows = [[name, _shown(value)] for name, value in figures.items() if name != "probes"]
    return markdown_table(("figure", "value"), rows)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} users {row['goodput']:.0f}" for key, row in value.items())
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)


if __name__ == "__main__":
    main()
