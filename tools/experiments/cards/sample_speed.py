"""How long does the tail take from logits to tokens on a card, by what the rows ask for?

    python -m tools.experiments.cards.sample_speed --out DIR

Random logits of 152,064 words in bf16, with what `sampling_speed` asks for on a CPU. The host reads
once a step, however many rows there are; a test on torch's meta device holds that.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from molink.engine.device.streams import uploaded
from molink.engine.device.transfers import Transfers, transfers_on
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import Sampling, download
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.cards.timing import wall_us
from tools.experiments.harness.experiment import experiment
from tools.experiments.sampling.sampling_speed import ASKED, PROMPT

__all__ = ["main"]

WORDS, ROWS = 152_064, (1, 16, 64)

PREDICTED_MS = {1: (0.03, 1.0), 16: (0.03, 3.0), 64: (0.05, 10.0)}
"""Of an H200: some thirty launches and a sort of doubles; a consumer card has a sixty-fourth of its
single-precision rate in doubles, and will be slower."""

Asked = list[dict[str, Any]]


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print milliseconds of a step's sampling."""
    keep(out, "sample_speed", torch.device(device), _figures(torch.device(device)))


def _figures(device: torch.device) -> Iterator[Figure]:
    words, rows = (WORDS, ROWS) if device.type == "cuda" else (2_000, (2,))
    for count, asked in product(rows, ASKED):
        generator = torch.Generator().manual_seed(count)
        logits_RW = (torch.randn(count, words, generator=generator) * 3).bfloat16().to(device)
        ms = _step_ms(logits_RW, ASKED[asked], transfers_on(device))
        yield Figure(f"{count} rows, {asked}", ms, "ms", *PREDICTED_MS.get(count, (None, None)))


def _step_ms(logits_RW: torch.Tensor, asked: Asked, way: Transfers) -> float:
    histories = [_history(row, asked[row % len(asked)]) for row in range(len(logits_RW))]
    known, device = [len(PROMPT)] * len(histories), logits_RW.device

    def step() -> None:
        with torch.inference_mode():
            sampling = Sampling(histories, known, logits_RW.shape[1], device)
            sent = uploaded(sampling.settings, device)
            (table_RC,) = download(sampling.table(logits_RW, sent), read=way.read)
            sampling.take(table_RC)

    return wall_us(step, device) / 1e3


def _history(row: int, asked: dict[str, Any]) -> SequenceHistory:
    params = SamplingParams(max_tokens=9_999, seed=row, stop_token_ids=(2,), **asked)
    prompt = PROMPT if params.needs_prompt else ()
    admission = Admission(row, len(PROMPT), len(PROMPT) + 9_999, params, prompt)
    return SequenceHistory.from_admission(admission)


if __name__ == "__main__":
    main()
