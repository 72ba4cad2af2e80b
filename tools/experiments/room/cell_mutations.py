"""Is each fault that a ring with lenders and cuts could have caught by a test?

    python -m tools.experiments.room.cell_mutations --out DIR

Each mutation is one change of the product, made in a copy of what is committed; the tests beside it
run there and must fail, and must have passed before the change. Nothing here is changed. Minutes.
"""

import os
import re
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from molink.errors import UserError
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

ROOT = Path(__file__).parents[3]
SOURCES = ("", "scheduler", "agent", "sim")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
TESTS_FAILED = 1
"""Exit status of pytest where tests ran and some failed; a test that cannot be imported is 2."""

WITHIN_S = 900.0
"""How long tests may take: what makes them wait for ever, none of them has caught."""

CORE, LAYERS = "scheduler/molink_scheduler", "molink/engine/layers"
CHANGING, PARTS = "tests/scheduler/test_changing_ring.py", "tests/engine/layers/test_parts.py"
LEDGER, LENT = "tests/scheduler/cell/test_ledger.py", "tests/engine/memory/test_lent_blocks.py"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the product, and the tests that are to catch it."""

    name: str
    file: str
    was: str
    """Text that stands in the file once."""
    becomes: str
    tests: tuple[str, ...]
    """Arguments of pytest."""


MUTATIONS = (
    Mutation(
        "sinks twice: in a part, too",
        f"{LAYERS}/layer_rows.py",
        "self._attend(self.variant.without_sinks, log_sums_TH)",
        "self._attend(self.variant, log_sums_TH)",
        (PARTS, "-k", "log_sum_exps"),
    ),
    Mutation(
        "the guard of -inf removed, torch",
        f"{LAYERS}/parts.py",
        "    highest_TH.masked_fill_(highest_TH == -torch.inf, 0.0)\n",
        "",
        (PARTS, "-k", "see_nothing"),
    ),
    Mutation(
        "the guard of -inf removed, kernel",
        "molink/engine/kernels/cpu/native/join_parts.h",
        "*highest = high = high == -INFINITY ? 0 : high;",
        "*highest = high;",
        (PARTS, "-k", "see_nothing"),
    ),
    Mutation(
        "parts in order of arrival",
        f"{LAYERS}/parts.py",
        "parts = sorted(parts, key=lambda part: part.order)",
        "parts = list(parts)",
        (PARTS, "-k", "order_of_their_keys"),
    ),
    Mutation(
        "capacity given back before the head's word",
        f"{CORE}/kv/capacity.py",
        "self.blocks = max(self.blocks, blocks)",
        "self.blocks = blocks",
        (CHANGING,),
    ),
    Mutation(
        "capacity given back at a word of an older offer",
        f"{CORE}/kv/capacity.py",
        "if capacity.heard[:1] == (self.number,):",
        "if capacity.heard:",
        (CHANGING,),
    ),
    Mutation(
        "capacity counted before the lease: by the head",
        f"{CORE}/kv/capacity.py",
        "RingCapacity(min(one.blocks for one in heard)",
        "RingCapacity(max(one.blocks for one in heard)",
        (CHANGING,),
    ),
    Mutation(
        "capacity counted before the lease: by the ledger",
        f"{CORE}/cell/ledger.py",
        "        lender.room_bytes_reported = min(lender.room_bytes_reported, event.room_bytes)\n"
        "        self.book.hold(lease)",
        "        lender.room_bytes_reported = min(lender.room_bytes_reported, event.room_bytes)\n"
        "        self.book.hold(lease.with_blocks(offer.blocks))",
        (LEDGER,),
    ),
    Mutation(
        "an answer of an old incarnation believed: by a stage",
        "molink/lender/client.py",
        "if frame.incarnation != self._incarnation:",
        "if False:",
        ("tests/lender/test_client.py",),
    ),
    Mutation(
        "an answer of an old incarnation believed: by the ledger",
        f"{CORE}/cell/ledger.py",
        "            or origin.incarnation != known.incarnation\n",
        "",
        (LEDGER,),
    ),
    Mutation(
        "a lost lender's request not named: by its blocks",
        f"{CORE}/kv/blocks.py",
        "return any(block in blocks for blocks in self._lost)",
        "return False",
        (LENT,),
    ),
    Mutation(
        "a lost lender's request not named: to the ring",
        "molink/engine/local_engine.py",
        "for one, tokens in computed.items() if one not in lost}",
        "for one, tokens in computed.items()}",
        ("tests/engine/test_local_engine.py", "-k", "lost_lender"),
    ),
    Mutation(
        "a cached number there offered",
        f"{CORE}/kv/blocks.py",
        "for one, block in self._cached.items() if not self._is_lost(block))",
        "for one, block in self._cached.items())",
        ("tests/scheduler/kv/test_blocks.py",),
    ),
    Mutation(
        "a block published by a cut request",
        f"{CORE}/head/sequence.py",
        "return cut.whole_tokens if cut.is_cut else len(self.known)",
        "return len(self.known)",
        ("tests/scheduler/test_cut_ring.py",),
    ),
    Mutation(
        "a window block freed ahead of what is known",
        "molink/engine/memory/window_pool.py",
        "self.blocks.settle(span.request_id, span.known_end - REWOUND_TOKENS_MAX)",
        "self.blocks.settle(span.request_id, span.end)",
        ("tests/engine/memory/test_window_pool.py",),
    ),
)


@experiment
@click.option("--only", metavar="TEXT", default="", help="Mutations with this in their names.")
def main(out: Path, only: str) -> None:
    """Print for each mutation how many tests caught it, and which one was first."""
    results = dict[str, object]()
    with TemporaryDirectory() as scratch:
        copy = _copied(Path(scratch))
        for one in (each for each in MUTATIONS if only in each.name):
            results[one.name] = asdict(one) | {"caught_by": _caught(copy, one)}
            write_report(out, "cell_mutations", results)
    rows = [[name, *_shown(found)] for name, found in results.items()]
    show(markdown_table(["mutation", "tests that fail", "the first"], rows))


def _copied(at: Path) -> Path:
    archive = at / "repository.tar"
    subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), "HEAD"], check=True
    )
    with tarfile.open(archive) as files:
        files.extractall(at / "copy", filter="data")
    return at / "copy"


def _caught(copy: Path, one: Mutation) -> list[str]:
    """Tests that fail with the change and pass without it. Raises UserError where the text is
    another one by now, where they do not pass without it, and where none fails or they do not
    end."""
    file = copy / one.file
    before = file.read_text()
    if before.count(one.was) != 1:
        raise UserError(
            f"{one.file} has {before.count(one.was)} times {one.was!r}, and once is due"
        )
    status, said = _tested(copy, one)
    if status:
        raise UserError(f"tests for {one.name!r} fail without it:\n{said}")
    file.write_text(before.replace(one.was, one.becomes))
    try:
        status, said = _tested(copy, one)
    finally:
        file.write_text(before)
    found = FAILED.findall(said)
    if status != TESTS_FAILED or not found:
        raise UserError(f"no test caught {one.name!r}:\n{said}")
    return found


def _tested(copy: Path, one: Mutation) -> tuple[int, str]:
    paths = os.pathsep.join(str(copy / source) for source in SOURCES)
    command = (sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider")
    try:
        run = subprocess.run(
            [*command, *one.tests],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        what = f"tests for {one.name!r} have not ended within {WITHIN_S:.0f} s"
        raise UserError(what) from None
    return run.returncode, run.stdout + run.stderr


def _shown(found: object) -> tuple[str, str]:
    assert isinstance(found, dict)
    caught = found["caught_by"]
    return str(len(caught)), f"`{caught[0]}`"


if __name__ == "__main__":
    main()
