"""Traces of repeated prompts: Mooncake's, with the hashes of their blocks.

Each line of a trace names its prompt's blocks of 512 tokens by whole numbers; two prompts share a
beginning exactly as far as their numbers are alike. A number is one token of one block for the
prefix tree that rings use, so that tree is used as it is. The last block of a prompt is rarely
full; it counts as one all the same, as in Mooncake.

Only prompts are named: nobody goes on from an answer here. A block's tokens are its number, once
for each.

A trace is brought to a lower rate by leaving out whole conversations: what is left are fewer users
who type as fast as they did. Leaving out single requests would tear turns from their history, and
stretching the time would make users slower and every cache look smaller: a turn would come back
after ten times as much of others. Each conversation has its own number from the seed, and stays
when that is below the share: those of a low rate are among those of every higher one.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

from molink.errors import UserError
from molink.workload.trace import ROWS_MAX
from molink_scheduler.token_ids import TOKEN_BYTES, token_bytes, tokens_of
from molink_sim.workload import BATCH_REQUESTS_MIN, BATCH_S

BLOCK_TOKENS = 512
"""Tokens of one hash in Mooncake's traces."""

HASH_MAX = 2**31 - 1
"""A token of the prefix tree is a signed number of 32 bits."""

COMMON_SHARE = 0.01
"""A block that more requests begin with is a system prompt and no sign of a conversation. All
requests of the conversation trace share one block, no other is in more than 0.4 %."""

COMMON_MIN = 16
"""Requests that may begin with one block of a short trace: conversations may have as many turns."""

COUNTS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """Request of a trace whose blocks are known."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: bytes
    """Numbers of 32 bits, one for each block of the prompt, the last one included that may not be
    full."""
    conversation: int = 0
    """Number that all requests have in common that share more than a system prompt."""

    @property
    def prompt(self) -> bytes:
        """Its tokens: each block is its number again and again, one above it."""
        words = (one + 1 for one in tokens_of(self.blocks))
        whole = b"".join(token_bytes((word,)) * BLOCK_TOKENS for word in words)
        return whole[: self.input_tokens * TOKEN_BYTES]

    @property
    def block_count(self) -> int:
        """Blocks of the prompt."""
        return -(-self.input_tokens // BLOCK_TOKENS)


def read_cache_trace(path: Path, jitter_seed: int = 0) -> list[CacheRequest]:
    """All requests of a file in Mooncake's format, in order of time.

    Requests that came in batches, because the clock of who recorded them ticks every 3 s, are
    spread over those by `jitter_seed`.

    Raises:
        UserError: for a file that is no such trace, with the number of the line that is wrong.
    """
    rows = list(_rows(path))
    if not rows:
        raise UserError(f"the trace {path} holds no requests")
    if len(rows) > ROWS_MAX:
        raise UserError(f"{path} has over {ROWS_MAX} rows: cut the trace")
    found = _with_conversations(rows)
    return _spread(found, jitter_seed)


def _rows(path: Path) -> Iterator[tuple[list[int], CacheRequest]]:
    """Hashes and request of each line."""
    last_s = 0.0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(islice(file, ROWS_MAX + 1), start=1):
                if line.strip():
                    found = _row(line, path, number)
                    if found[1].at_s < last_s:
                        raise UserError(f"{path}, line {number}: times go back; sort the trace")
                    last_s = found[1].at_s
                    yield found
    except OSError as error:
        raise UserError(f"cannot read the trace {path} ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UserError(f"{path} is no JSONL file: give one JSON object a line") from None


def _row(line: str, path: Path, number: int) -> tuple[list[int], CacheRequest]:
    try:
        row = json.loads(line)
        timestamp_ms, input_tokens, output_tokens = (_whole(row.get(name)) for name in COUNTS)
        hashes = [_whole(one) for one in row["hash_ids"]]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise UserError(
            f"{path}, line {number}: must be a JSON object in which {', '.join(COUNTS)} are whole "
            "numbers, none negative, and hash_ids is a list of such numbers below 2^31"
        ) from None
    request = CacheRequest(timestamp_ms / 1000, input_tokens, output_tokens, token_bytes(hashes))
    if len(hashes) != request.block_count or not input_tokens or not output_tokens:
        raise UserError(
            f"{path}, line {number}: a prompt and an answer have 1 token or more, and the prompt a "
            f"hash for each {BLOCK_TOKENS} of its tokens; {input_tokens:,} tokens are "
            f"{request.block_count} blocks, it has {len(hashes)} hashes"
        )
    return hashes, request


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= HASH_MAX:
        raise ValueError
    return value


def _with_conversations(rows: Sequence[tuple[list[int], CacheRequest]]) -> list[CacheRequest]:
    """A conversation is known by the first block of its prompts that is not common."""
    counts = Counter(block for hashes, _ in rows for block in hashes)
    most = max(COMMON_MIN, COMMON_SHARE * len(rows))
    common = {block for block, count in counts.items() if count > most}
    found = []
    for number, (hashes, request) in enumerate(rows):
        own = next((block for block in hashes if block not in common), -1 - number)
        found.append(replace(request, conversation=own))
    return found


def _spread(requests: list[CacheRequest], jitter_seed: int) -> list[CacheRequest]:
    times = {one.at_s for one in requests}
    if len(times) == 1 or len(requests) < BATCH_REQUESTS_MIN * len(times):
        return requests
    random = Random(f"jitter {jitter_seed}")
    later = [replace(one, at_s=one.at_s + random.uniform(0, BATCH_S)) for one in requests]
    return sorted(later, key=attrgetter("at_s"))


def rate_per_s(requests: Sequence[CacheRequest]) -> float:
    """Mean arrivals per second of a trace of at least two requests.

    Raises:
        UserError: if all came at once.
    """
    span_s = requests[-1].at_s - requests[0].at_s if requests else 0.0
    if span_s <= 0:
        raise UserError("all requests of the trace come at once: it has no rate")
    return (len(requests) - 1) / span_s


def at_rate(requests: Sequence[CacheRequest], rate: float, seed: int) -> list[CacheRequest]:
    """The trace at `rate` requests per second: with fewer conversations, or played faster."""
    factor = rate / rate_per_s(requests)
    if factor > 1:
        return [replace(one, at_s=one.at_s / factor) for one in requests]
    stays = {
        conversation: Random(f"conversation {seed} {conversation}").random() < factor
        for conversation in {one.conversation for one in requests}
    }
    return [one for one in requests if stays[one.conversation]]


def within(requests: Sequence[CacheRequest], tokens_max: int) -> list[CacheRequest]:
    """Requests whose prompt and answer together have at most so many tokens.

    Raises:
        UserError: if none has.
    """
    found = [one for one in requests if one.input_tokens + one.output_tokens <= tokens_max]
    if not found:
        raise UserError(
            f"no request of the trace fits into {tokens_max:,} tokens: give rings more capacity"
        )
    return found
