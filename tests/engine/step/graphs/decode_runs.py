"""Decode steps with changing members, lengths and padding, replayed and launched on one stage.

Each request is there twice, once for either. Launched steps compute rows of others in place of
padding: a product of fewer rows is summed in another order, which alone makes a difference of a
millionth.
"""

from random import Random

import torch

from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams

PROMPTS = (5, 30, 17, 41)
"""Tokens of the requests' prompts: some blocks each, and lengths that differ."""

MEMBERS = ((0, 1, 2, 3), (2,), (3, 1, 0), (1, 2), (0, 1, 3, 2), (3, 0), (2, 0, 1))
"""Requests of each decode step, in the order of their rows; up to four."""

OTHERS = (4, 5, 6)
"""Requests that stand in the place of padding."""

LAUNCHED = 100
"""Added to the number of a request that is launched."""


def worst_difference(stage) -> float:
    """Largest difference of a replayed step from a launched one, relative to its largest number."""
    generator, worst, ends = torch.Generator().manual_seed(1), 0.0, [*PROMPTS, 3, 3, 3]
    for number, tokens in enumerate(ends):
        given = given_rows(stage, tokens, generator)
        for request in (number, LAUNCHED + number):
            stage.step(_prompt(request, tokens), *given)
    for members in MEMBERS:
        rows, bucket = len(members), 1 if len(members) == 1 else 4
        ids, rows_TD = given_rows(stage, bucket, generator)
        full = [*members, *OTHERS[: bucket - rows]]
        wanted = launched(stage, _decode(full, ends, LAUNCHED), ids, rows_TD)[:rows]
        own_TD = None if rows_TD is None else rows_TD[:rows]
        got = replayed(stage, _decode(members, ends), ids[:rows], own_TD)
        for number in members:
            ends[number] += 1
        worst = max(worst, float((got - wanted).abs().max() / wanted.abs().max()))
    return worst


def worst_difference_of_drafts(stage):
    """Largest difference of a replayed row of a request's drafts, some of which are taken back,
    from the same row replayed alone, relative to its largest number."""
    generator, rng, worst, ends = torch.Generator().manual_seed(1), Random(2), 0.0, [17, 30, 5]
    for number, tokens in enumerate(ends):
        given = given_rows(stage, tokens, generator)
        for request in (number, LAUNCHED + number):
            stage.step(_prompt(request, tokens), *given)
    for members in ((0, 1, 2), (1,), (2, 0), (1, 2), (0, 2, 1), (0,)):
        counts = [rng.randint(1, 5) for _ in members]
        ids, rows_TD = given_rows(stage, sum(counts), generator)
        pairs = list(zip(members, counts, strict=True))
        got = replayed(stage, _drafted(pairs, ends), ids, rows_TD)
        single = [(number, ends[number] + at) for number, count in pairs for at in range(count)]
        for row, (number, at) in enumerate(single):
            alone = Span(LAUNCHED + number, at, at + 1, True)
            own_TD = None if rows_TD is None else rows_TD[row : row + 1]
            batch = Batch(9, BatchClass.DECODE, 0, (alone,))
            (wanted,) = replayed(stage, batch, ids[row : row + 1], own_TD)
            worst = max(worst, float((got[row] - wanted).abs().max() / wanted.abs().max()))
        for number, count in pairs:
            ends[number] += rng.randint(1, count)
    return worst


def _drafted(pairs, ends):
    spans = (Span(n, ends[n], ends[n] + k, True, (7,) * (k - 1)) for n, k in pairs)
    return Batch(9, BatchClass.DECODE, 0, tuple(spans))


def given_rows(stage, rows, generator):
    """Token ids and, for all stages but the head, hidden rows."""
    ids = torch.randint(3, stage.description.vocabulary_size, (rows,), generator=generator)
    rows_TD = torch.randn(rows, stage.hidden_size, generator=generator)
    return ids.tolist(), None if stage.is_head else rows_TD


@torch.inference_mode()
def launched(stage, batch, ids, rows_TD):
    on_device_TD = None if rows_TD is None else rows_TD.to(stage.device)
    return stage.launched_rows(batch, ids, on_device_TD, _grown(stage, batch))[0]


@torch.inference_mode()
def replayed(stage, batch, *given):
    out = stage._graphs.rows(batch, *given, _grown(stage, batch))
    assert out is not None, stage.fallbacks.decode
    return out[0].clone()


def _grown(stage, batch):
    """The rows of which a tail is to give logits."""
    for span in batch.spans:
        stage.kv.grow(span.request_id, span.end)
    stage.windows.grow(batch.spans)
    return list(range(batch.tokens)) if stage.is_tail else []


def _prompt(number, tokens):
    # It is told to stay short, so that its blocks come to lie scattered.
    sampling = SamplingParams(max_tokens=50, temperature=0.0)
    admissions = (Admission(number, tokens, 1, sampling, tuple(range(3, 3 + tokens))),)
    spans = (Span(number, 0, tokens, False),)
    return Batch(number, BatchClass.PREFILL, -1, spans, admissions)


def _decode(numbers, ends, beyond=0):
    spans = (Span(n + beyond, ends[n], ends[n] + 1, True) for n in numbers)
    return Batch(9, BatchClass.DECODE, 0, tuple(spans))
