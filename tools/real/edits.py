"""Edits of real Python files by a published model: tokens per second with copying and without.

    python -m tools.real.edits --out DIR

Two rings of the same model, three stages of one thread behind emulated links, one with `--drafter
copy` and one with none. Each is asked in turn to rename a function in a file of the standard
library, the second also with the file as `prediction`; then both chat. An edit whose text differs
fails the run. It may be ended at any time: what was measured until then is in OUT/edits.json, and
`--budget-s` ends it by itself behind the edit that is under way.
"""

import ast
import asyncio
import re
import statistics
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from molink.bench.served_ring import ServerProcess
from molink.client.api_client import ApiClient
from molink.errors import UserError
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.real.exactness import GGUF
from tools.real.prompts import CHATS
from tools.real.published import cache_folder, fetch, read_manifest
from tools.real.served import import_model

__all__ = ["Answer", "Edit", "Row", "edits_of", "edits_table", "main", "other_texts"]

MODEL = "qwen2.5-coder-0.5b"
STAGES = 3

FILE_TOKENS_MIN = 200
"""A shorter file is no edit that one waits for."""

CHARS_PER_TOKEN_MIN, CHARS_PER_TOKEN_MAX = 2, 6
"""Of Python in this vocabulary; files beyond are not even counted."""

MORE_TOKENS = 100
"""Of an answer beyond its file: a sentence before it, and the fence around it."""

USES_MIN = 2
"""Places where the name stands, its definition included."""

WAYS = ("none", "copy", "copy, prediction")
"""Columns: the drafter, and whether the request predicts its answer."""


@dataclass(frozen=True, slots=True)
class Edit:
    """File, and the function of it that gets another name."""

    file: str
    text: str
    name: str

    @property
    def task(self) -> str:
        """What the model is asked."""
        return (
            f"Rename the function `{self.name}` to `{self.name}_renamed` everywhere in this file. "
            f"Answer with the whole file and nothing else.\n\n```python\n{self.text}```\n"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Text of an answer, and how fast it came."""

    text: str
    tokens: int
    first_s: float
    """Seconds to its first token, the prompt with it."""
    rest_s: float
    """Seconds from there to its last."""
    accepted: int = 0
    """Drafts that came true, of a request with a prediction."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens behind the first, which waits for the prompt, a second."""
        return (self.tokens - 1) / self.rest_s if self.rest_s else 0.0


@dataclass(slots=True)
class Row:
    """One text that was asked for in every way."""

    name: str
    kind: str
    """`edit` or `chat`."""
    answers: dict[str, Answer] = field(default_factory=dict)

    def times(self, way: str) -> float:
        """How many times as fast as without drafts."""
        return self.answers[way].tokens_per_s / self.answers["none"].tokens_per_s


class Rings(NamedTuple):
    """Clients of the two rings."""

    none: ApiClient
    copy: ApiClient


@experiment
@click.option("--edits", default=20, show_default=True, help="Files to edit.")
@click.option("--chats", default=4, show_default=True, help="Answers of a chat.")
@click.option("--file-tokens", default=3_000, show_default=True, help="Longest file.")
@click.option("--answer-tokens", type=click.IntRange(min=2), help="Cut answers; default: whole.")
@click.option("--chat-tokens", default=128, show_default=True, help="Longest answer of a chat.")
@click.option("--link", metavar="MBPS:MS", default="100:30", show_default=True)
@click.option("--dtype", default="auto", show_default=True, help="As of `molink serve`.")
@click.option("--budget-s", default=float("inf"), help="Ask nothing new after so long.")
def main(out: Path, **own: Any) -> None:
    """Print the tokens per second of edits and chats with copied drafts and without."""
    model = next(one for one in read_manifest() if one.name == MODEL)
    gguf = fetch(model, cache_folder())
    folder = cache_folder() / f"{MODEL}-made" / "gguf"
    import_model(gguf, folder, GGUF)
    rows = list[Row]()
    try:
        asyncio.run(_measure(folder, rows, **own))
    except KeyboardInterrupt:
        show("ended early: what follows is what was measured until then")
    finally:
        _write(out, rows, own)
    show(edits_table(rows))
    if others := other_texts(rows):
        raise UserError(f"drafts have changed {len(others)} answers: {', '.join(others)}")


def _write(out: Path, rows: Sequence[Row], own: Mapping[str, Any]) -> None:
    figures = [
        {"name": row.name, "kind": row.kind, "ways": _figures(row)} for row in rows if row.answers
    ]
    report = {"options": dict(own), "rows": figures, "other_texts": other_texts(rows)}
    write_report(out, "edits", report)


def _figures(row: Row) -> dict[str, dict[str, Any]]:
    return {
        way: {key: value for key, value in asdict(answer).items() if key != "text"}
        | {"tokens_per_s": answer.tokens_per_s}
        for way, answer in row.answers.items()
    }


# -- texts -----------------------------------------------------------------------------------------


def edits_of(folder: Path, chars_max: int, chars_min: int) -> Iterator[Edit]:
    """Edits of a folder's files, the longest first."""
    sizes = {path: path.stat().st_size for path in folder.glob("*.py")}
    fitting = [path for path, size in sizes.items() if chars_min <= size <= chars_max]
    for path in sorted(fitting, key=lambda one: (-sizes[one], one.name)):
        text = path.read_text(encoding="utf-8")
        if (name := _often_used(text)) is not None:
            yield Edit(path.name, text, name)


def _often_used(text: str) -> str | None:
    """The function of a file whose name stands there most often; None: none is used there."""
    names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    uses = {name: len(re.findall(rf"\b{name}\b", text)) for name in names if name[:2] != "__"}
    most = max(uses, key=lambda name: (uses[name], name), default=None)
    return most if most is not None and uses[most] >= USES_MIN else None


async def _fitting(client: ApiClient, tokens_max: int, count: int) -> list[tuple[Edit, int]]:
    """So many edits, with the tokens of their files: of files of at most `tokens_max`."""
    chars = tokens_max * CHARS_PER_TOKEN_MAX, FILE_TOKENS_MIN * CHARS_PER_TOKEN_MIN
    found = list[tuple[Edit, int]]()
    for edit in edits_of(Path(sysconfig.get_paths()["stdlib"]), *chars):
        tokens = len((await client.post("/tokenize", {"prompt": edit.text}))["tokens"])
        if FILE_TOKENS_MIN <= tokens <= tokens_max:
            found.append((edit, tokens))
        if len(found) == count:
            break
    return found


# -- asking ----------------------------------------------------------------------------------------


async def _measure(
    folder: Path,
    rows: list[Row],
    *,
    edits: int,
    chats: int,
    file_tokens: int,
    answer_tokens: int | None,
    chat_tokens: int,
    link: str,
    dtype: str,
    budget_s: float,
) -> None:
    """Append a row for each text, chats between the edits, so that both are in what was measured
    when it ends early."""
    async with _rings(folder, link, dtype, 2 * file_tokens + 1_000) as rings:
        ends_s = time.monotonic() + budget_s
        files = await _fitting(rings.none, file_tokens, edits)
        asked = [
            (edit.file, edit, min(tokens + MORE_TOKENS, answer_tokens or tokens + MORE_TOKENS))
            for edit, tokens in files
        ]
        for number in range(max(len(asked), chats)):
            if number < min(chats, len(CHAT_TASKS)) and time.monotonic() < ends_s:
                rows.append(row := Row(f"chat {number + 1}", "chat"))
                await _ask_chat(rings, row, CHAT_TASKS[number], chat_tokens, number)
            if number < len(asked) and time.monotonic() < ends_s:
                name, edit, tokens = asked[number]
                rows.append(row := Row(f"{name}: {edit.name}", "edit"))
                await _ask_edit(rings, row, edit, tokens, number)


CHAT_TASKS: Sequence[Sequence[Mapping[str, str]]] = (
    *(chat.messages for chat in CHATS),
    ({"role": "user", "content": "Explain in plain words how a hash table finds a key."},),
    (
        {
            "role": "user",
            "content": "Write a Python function that says whether a year is a leap year.",
        },
    ),
    ({"role": "user", "content": "What should I pack for three days in the mountains in May?"},),
)


async def _ask_edit(rings: Rings, row: Row, edit: Edit, tokens: int, number: int) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": edit.task}],
        "max_tokens": tokens,
    }
    predicted = body | {"prediction": {"type": "content", "content": edit.text}}
    asked = (
        ("none", rings.none, body),
        ("copy", rings.copy, body),
        (WAYS[2], rings.copy, predicted),
    )
    await _ask_in_turn(row, asked, number)


async def _ask_chat(
    rings: Rings, row: Row, messages: Sequence[Mapping[str, str]], tokens: int, number: int
) -> None:
    body: dict[str, Any] = {"messages": list(messages), "max_tokens": tokens}
    await _ask_in_turn(row, (("none", rings.none, body), ("copy", rings.copy, body)), number)


async def _ask_in_turn(
    row: Row, asked: Sequence[tuple[str, ApiClient, dict[str, Any]]], number: int
) -> None:
    """Ask in every way, each time beginning with another; a row that is not whole is left out."""
    first = number % len(asked)
    answers = {
        way: await _asked(client, body) for way, client, body in (*asked[first:], *asked[:first])
    }
    row.answers = {way: answers[way] for way, *_ in asked}
    show(_line(row))


async def _asked(client: ApiClient, body: Mapping[str, Any]) -> Answer:
    """One greedy answer as a stream. Raises UserError where it fails."""
    began_s, times_s, text, usage = time.perf_counter(), list[float](), "", dict[str, Any]()
    options = {"temperature": 0.0, "stream_options": {"include_usage": True}}
    async for event in client.stream("/v1/chat/completions", {**body, **options}):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                text += piece
                times_s.append(time.perf_counter())
    if not times_s:
        raise UserError("an answer has no text")
    details = usage.get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens") or 0
    first_s = times_s[0] - began_s
    return Answer(text, usage["completion_tokens"], first_s, times_s[-1] - times_s[0], accepted)


@asynccontextmanager
async def _rings(folder: Path, link: str, dtype: str, kv_tokens: int) -> AsyncIterator[Rings]:
    """Two rings that are asked in turn: the one that is not asked computes nothing."""
    words = ("--nodes", str(STAGES), "--threads", "1", "--link", link, "--dtype", dtype, "--quiet")
    lengths = ("--kv-tokens", str(kv_tokens), "--max-model-len", str(kv_tokens))
    async with AsyncExitStack() as stack:
        clients = list[ApiClient]()
        for drafter in ("none", "copy"):
            options = (*words, *lengths, "--drafter", drafter)
            server = await ServerProcess.start(str(folder), options)
            stack.push_async_callback(server.stop)
            client = await stack.enter_async_context(ApiClient(server.url))
            clients.append(client)
            await _asked(client, {"messages": CHAT_TASKS[0], "max_tokens": 8})
        yield Rings(*clients)


# -- what came out ---------------------------------------------------------------------------------


def other_texts(rows: Sequence[Row]) -> list[str]:
    """Names of rows whose answers are not all the same text."""
    return [row.name for row in rows if len({one.text for one in row.answers.values()}) > 1]


def _line(row: Row) -> str:
    ways = (
        f"{way} {one.tokens_per_s:.1f}/s" + (f" ({row.times(way):.2f} x)" if way != "none" else "")
        for way, one in row.answers.items()
    )
    same = "another text" if other_texts([row]) else "the same text"
    return f"{row.name}, {row.answers['none'].tokens} tokens: {', '.join(ways)}, {same}"


def edits_table(rows: Sequence[Row]) -> str:
    """Medians of edits and of chats, by drafter."""
    lines = list[list[str]]()
    for kind in ("edit", "chat"):
        whole = [row for row in rows if row.kind == kind and row.answers]
        for way in WAYS if whole else ():
            if way in whole[0].answers:
                lines.append([kind, way, *_cells(whole, way)])
    head = ["", "drafter", "answers", "tokens", "tokens/s", "times as fast", "least", "same text"]
    return markdown_table(head, lines)


def _cells(rows: Sequence[Row], way: str) -> list[str]:
    answers, times = [row.answers[way] for row in rows], [row.times(way) for row in rows]
    same = sum(row.answers[way].text == row.answers["none"].text for row in rows)
    return [
        str(len(rows)),
        f"{statistics.median(one.tokens for one in answers):,.0f}",
        f"{statistics.median(one.tokens_per_s for one in answers):.1f}",
        f"{statistics.median(times):.2f} x",
        f"{min(times):.2f} x",
        f"{same} of {len(rows)}",
    ]


if __name__ == "__main__":
    main()
