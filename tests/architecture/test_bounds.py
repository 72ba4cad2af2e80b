"""Everything that grows with load has a bound with a name: no queue is made without one, and every
bound that the operator is told of is in the code as it says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("molink", "scheduler/molink_scheduler", "agent/molink_agent")

BOUNDS = {
    "Queue": "maxsize",
    "LifoQueue": "maxsize",
    "PriorityQueue": "maxsize",
    "SimpleQueue": "",
    "deque": "maxlen",
}
"""By class, the argument that bounds it; empty: none can."""

BOUNDED_ELSEWHERE = {
    "molink/api/openai/batches/idle_service.py": "one answer, which has max_tokens",
    "molink/api/chat/formats/parameters.py": "parts of one schema, ALTERNATIVES_MAX are looked at",
    "molink/bench/software_times.py": "one message at a time goes round",
    "molink/coordinator/requests/audit_queue.py": "WAITING_MAX, before a request is put in",
    "molink/coordinator/ring/live_sequence.py": "UNREAD_EVENTS_MAX, where tokens are put in",
    "molink/coordinator/ring/links.py": "an inbound link's WAITING_MESSAGES_MAX and bytes",
    "molink/engine/device/transfers.py": "copies of one step",
    "molink/serving/answers/state_writer.py": "QUEUED_MAX, before a write is put in",
    "molink/stage/cache/handing.py": "WAITING_BYTES_MAX, before blocks are put in",
    "molink/stage/cache/taking.py": "FETCHES_MAX, by the table of blocks",
    "molink/stage/links.py": "each inbound link's WAITING_MESSAGES_MAX and bytes",
    "molink/stage/stage_process.py": "commands of the parent: one to load, one for each epoch",
    "molink/transport/curve.py": "WAITING_MAX, before a question is put in",
    "molink/transport/link/chunk_stream.py": "the bytes that the pacer lets be in flight",
    "scheduler/molink_scheduler/cell/quotas.py": "falling peaks, and what is older leaves",
    "scheduler/molink_scheduler/link/estimator.py": "what is older than a window leaves",
    "scheduler/molink_scheduler/link/sender.py": "chunks that were in flight on a dead connection",
    "scheduler/molink_scheduler/placement/split.py": "layers of one model",
    "scheduler/molink_scheduler/stage/queue.py": "rows that have KV of their own, by the book",
    "scheduler/molink_scheduler/stage/shadow_queue.py": "the loop's SHADOW_MESSAGES_MAX",
}
"""Files that make a queue without a bound, and what bounds it."""


def unbounded(path: Path) -> Iterator[int]:
    """Lines on which a queue without a bound is made, or named as what makes a default."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func) if (name := _name(func)) in BOUNDS:
                if not _has_bound(node, BOUNDS[name]):
                    yield node.lineno
            case ast.keyword(arg="default_factory", value=value) if id(value) not in called:
                if _name(value) in BOUNDS:
                    yield value.lineno


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""


def _has_bound(call: ast.Call, argument: str) -> bool:
    places = 1 if argument == "maxsize" else 2
    return len(call.args) >= places or any(one.arg == argument for one in call.keywords)


def test_no_queue_without_a_bound():
    found = {
        str(path.relative_to(ROOT))
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
        if any(unbounded(path))
    }
    assert found - BOUNDED_ELSEWHERE.keys() == set(), "give it maxsize or maxlen, or say its bound"
    assert BOUNDED_ELSEWHERE.keys() - found == set(), "they have a bound now"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("asyncio.Queue()", 1),
        ("asyncio.Queue(maxsize=9)", 0),
        ("queue.SimpleQueue()", 1),
        ("deque[int]()", 1),
        ("deque([1])", 1),
        ("deque(maxlen=3)", 0),
        ("field(default_factory=deque)", 1),
        ("field(default_factory=asyncio.Queue)", 1),
        ("field(default_factory=lambda: deque(maxlen=3))", 0),
        ("field(default_factory=dict)", 0),
    ],
)
def test_it_finds_what_has_none(tmp_path, code, count):
    (tmp_path / "a.py").write_text(f"x = {code}\n")
    assert len(list(unbounded(tmp_path / "a.py"))) == count


def told() -> list[tuple[str, str]]:
    """File and name of each bound in the operator's table."""
    table = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
    return re.findall(r"`([a-z_/]+\.py)`: `([A-Z_]+)`", table)


def test_the_operator_is_told_of_bounds_that_are_there():
    assert len(told()) > 20
    for file, name in told():
        whole = ROOT / file if (ROOT / file).exists() else ROOT / "molink" / file
        assert re.search(rf"^(\w+, )*{name}\b.*=", whole.read_text(), re.MULTILINE), (
            f"{file}: {name}"
        )
