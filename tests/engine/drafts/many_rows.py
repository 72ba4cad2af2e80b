"""How many rows of decode batches are not, to the bit, what they are alone.

`test_rows_alone` runs it in a process whose products do not depend on the number of rows: its C
kernels are compiled without the tiles of AMX, which multiply six rows and more in another order.

    python -m tests.engine.drafts.many_rows ROUNDS DTYPE NAME...
"""

import json
import sys
import tempfile
from pathlib import Path
from random import Random

import torch

from molink_scheduler.batch import DECODE, DRAFTS_MAX, PREFILL, Admission, Batch, Span
from tests.engine.ring_driver import GREEDY, load_stages
from tests.engine.step.graphs.decode_runs import launched
from tests.engine.tiny_models import save_tiny

ROWS_MAX = 112
REQUESTS = 60
ALONE = 1_000
"""Added to the number of a request whose rows are computed one at a time."""


def main(rounds: int, dtype: str, *names: str) -> None:
    torch.set_num_threads(1)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps([name, *compared(name, rounds, dtype, Path(folder))]), flush=True)


def compared(name: str, rounds: int, dtype: str, folder: Path) -> tuple[int, int, int]:
    """Rows of all rounds, of the largest batch, and those that differ."""
    directory = Path("molink/models/demo") if name == "demo" else folder
    if name != "demo":
        save_tiny(name, folder, dtype)
    layers = json.loads((directory / "config.json").read_text())
    count = layers.get("num_hidden_layers") or layers["n_layer"]
    (stage,) = load_stages(directory, (0, count), dtype)
    stage.make_room(2 * REQUESTS * 128, 2**30)
    rng, ends = Random(1), prompted(stage, Random(2))
    computed = differ = largest = 0
    for number in range(rounds):
        spans, ids = drafted(ends, rng, ROWS_MAX if number == 0 else rng.randint(1, ROWS_MAX))
        together = launched(stage, Batch(0, DECODE, 0, tuple(spans)), ids, None)
        alone = [
            launched(stage, Batch(0, DECODE, 0, (one,)), [token], None)[0]
            for one, token in zip(single_rows(spans), ids, strict=True)
        ]
        differ += sum(not torch.equal(*pair) for pair in zip(together, alone, strict=True))
        computed, largest = computed + len(ids), max(largest, len(ids))
        for span in spans:  # Behind the drafts that are right, and rewound where it is long.
            right = rng.randint(1, span.tokens)
            ends[span.request_id] = span.start + right if span.start < 80 else 20
    return computed, largest, differ


def prompted(stage, rng: Random) -> list[int]:
    ends = [rng.randint(1, 40) for _ in range(REQUESTS)]
    for number, end in enumerate(ends):
        for request in (number, ALONE + number):
            admission = Admission(request, end, 128, GREEDY)
            batch = Batch(0, PREFILL, -1, (Span(request, 0, end, True),), (admission,))
            stage.step(batch, [3 + 7 * at % 150 for at in range(end)])
    return ends


def drafted(ends: list[int], rng: Random, rows: int) -> tuple[list[Span], list[int]]:
    """Spans of so many rows in all, and their token ids."""
    spans = list[Span]()
    for number in rng.sample(range(REQUESTS), REQUESTS):
        if rows:
            own = min(rows, rng.randint(1, DRAFTS_MAX + 1))
            rows -= own
            drafts = tuple(rng.randrange(3, 160) for _ in range(own - 1))
            spans.append(Span(number, ends[number], ends[number] + own, True, drafts))
    ids = [token for span in spans for token in (rng.randrange(3, 160), *span.drafts)]
    return spans, ids


def single_rows(spans: list[Span]) -> list[Span]:
    return [
        Span(ALONE + span.request_id, at, at + 1, True)
        for span in spans
        for at in range(span.start, span.end)
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
