"""Orders, and what is to be watched, asked for without the key that they want, each way in."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from yarl import URL

from molink.api.keys.store import KEY_PREFIX
from molink.api.server import free_ports
from tools.experiments.guard.trial_rows.trial import Outcome, Trial
from tools.experiments.harness.agents import PORTS
from tools.experiments.harness.processes import MOLINK, running

__all__ = ["ORDERS"]

PUBLIC = "chat.example.org"
PROXY = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Via": "1.1 nginx"}
NODE = "0" * 32

READS = ("/cluster", "/cluster/requests", "/cluster/events", "/metrics", "/plan")
ORDERED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/cluster/invites", {"uses": 1000, "expires_s": 2592000}),
    ("/cluster/intake", {"paused": True}),
    ("/cluster/intake", {"paused": False}),
    ("/cluster/cache/clear", {}),
    *((f"/cluster/nodes/{NODE}/{word}", {}) for word in ("drain", "resume", "remove")),
)
"""Path and body of each order..."""

WRITTEN: tuple[Callable[[str], str], ...] = (
    lambda path: path,
    lambda path: f"{path}?x=1",
    lambda path: path.replace("/c", "/%63", 1),
)
"""...and how a path may be written."""

ASKED = {"prompt_token_ids": [5, 9], "max_tokens": 1}
REFUSED = {401, 403}
UNTHOUGHT = {404, 405}
"""To a path that is no route, for who may ask."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way in: what the server is started with, and what a request says."""

    name: str
    up_options: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""
    """Of the key that is sent."""
    watches: bool = False
    """Whether this way may read what is to be watched."""
    asks: bool = False
    """Whether this way may ask for answers."""


WAYS = (
    Way("loopback, no key made", watches=True, asks=True),
    Way("proxy, `Host` of the upstream", headers=PROXY),
    Way("proxy, `Host` as asked", headers=PROXY | {"Host": PUBLIC}),
    Way("`--no-keys`", ("--no-keys",), watches=True, asks=True),
    Way("`--no-keys`, through a proxy", ("--no-keys",), PROXY, asks=True),
    Way("loopback, keys made", scope="none"),
    Way("inference key", scope="inference", asks=True),
    Way("inference key, through a proxy", headers=PROXY, scope="inference", asks=True),
)


async def orders() -> Outcome:
    """Count what each way is answered."""
    servers = [asyncio.to_thread(_tried, options) for options in ((), ("--no-keys",))]
    found = {name: codes for told in await asyncio.gather(*servers) for name, codes in told.items()}
    wrong = [one for way in WAYS for one in _wrong(way, found[way.name])]
    kinds = found[WAYS[0].name]
    counted = {
        kind: Counter(code for one in found.values() for code in one[kind]) for kind in kinds
    }
    text = "; ".join(f"{kind}: {_counts(one)}" for kind, one in counted.items())
    said = "; ".join(wrong) or "none is open that should not be, or shut that should not"
    return Outcome(f"{len(WAYS)} ways; {text}; {said}", not wrong, {"ways": found, "wrong": wrong})


def _tried(up_options: tuple[str, ...]) -> dict[str, dict[str, list[int]]]:
    """Status of each answer to the ways into one server, in their order: keys are made last."""
    told = {}
    with TemporaryDirectory(prefix="molink-orders-") as folder, _up(folder, *up_options) as url:
        for way in (one for one in WAYS if one.up_options == up_options):
            headers = dict(way.headers) | _key(way, Path(folder))
            told[way.name] = asyncio.run(_answers(url, headers))
    return told


def _counts(codes: Counter[int]) -> str:
    return ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))


def _wrong(way: Way, told: dict[str, list[int]]) -> list[str]:
    """What this way was answered otherwise than it should."""
    wrong = []
    if not set(told["orders"]) <= REFUSED | (UNTHOUGHT if way.asks else set()):
        wrong.append(f"{way.name}: orders {_counts(Counter(told['orders']))}")
    if way.watches is bool(set(told["reads"]) <= REFUSED | UNTHOUGHT):
        wrong.append(f"{way.name}: reads {_counts(Counter(told['reads']))}")
    if way.asks is bool(set(told["questions"]) & REFUSED):
        wrong.append(f"{way.name}: questions {_counts(Counter(told['questions']))}")
    return wrong


@contextmanager
def _up(folder: str, *up_options: str) -> Iterator[str]:
    """A running `molink up`; where its API is asked."""
    numbers = free_ports("127.0.0.1", len(PORTS))
    ports = (word for one in zip(PORTS, map(str, numbers), strict=True) for word in one)
    words = ("up", "demo", "--host", "127.0.0.1", "--public-host", PUBLIC, "--broker", "embedded")
    own = (*ports, "--data-dir", folder, *up_options)
    with running(MOLINK, *words, *own, quiet=True) as up:
        up.line("listening")
        yield f"http://127.0.0.1:{numbers[0]}"


def _key(way: Way, folder: Path) -> dict[str, str]:
    """The header with a key that is made for it; of scope "none" one is made, and not sent."""
    if not way.scope:
        return {}
    scope = "inference" if way.scope == "none" else way.scope
    words = (
        "key",
        "create",
        "--name",
        f"ann{WAYS.index(way)}",
        "--scope",
        scope,
        "--data-dir",
        str(folder),
    )
    command = [sys.executable, "-m", MOLINK, *words]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    key = next(word for word in said.split() if word.startswith(KEY_PREFIX))
    return {} if way.scope == "none" else {"Authorization": f"Bearer {key}"}


async def _answers(url: str, headers: Mapping[str, str]) -> dict[str, list[int]]:
    told: dict[str, list[int]] = {"orders": [], "reads": [], "questions": []}
    async with aiohttp.ClientSession(headers=headers) as session:
        for path, body in ORDERED:
            for form in WRITTEN:
                whole = URL(url + form(path), encoded=True)
                async with session.post(whole, json=body, allow_redirects=False) as answer:
                    told["orders"].append(answer.status)
        for path in READS:
            async with session.get(url + path) as answer:
                told["reads"].append(answer.status)
        async with session.post(f"{url}/generate", json=ASKED) as answer:
            told["questions"].append(answer.status)
    return told


ORDERS = Trial(
    "orders",
    "orders without an admin key: loopback, proxy with either `Host`, `--no-keys`, inference key",
    "200",
    "401 or 403 for each, and inference still open where it should be",
    orders,
)
