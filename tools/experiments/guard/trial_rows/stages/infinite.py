"""A stage that sends infinity in a row of each long prompt: of what lies behind its 40th token."""

from molink.stage.packing import Packing
from molink.stage.stage_process import main
from molink.wire.elements import Elements
from molink_scheduler.batch import Batch

TOKENS_MAX = 40
"""Of a prompt that is spared: the users of these trials ask less."""

_fit = Packing.fit


def fit(
    packing: Packing,
    batch: Batch,
    rows_TD: Elements,
    dtype: str,
    *,
    received: bool = False,
) -> tuple[Batch, Elements]:
    """As the product's; of rows that were computed here some are spoilt behind the check."""
    batch, rows_TD = _fit(packing, batch, rows_TD, dtype, received=received)
    row = 0
    for span in batch.spans:
        if not received and span.tokens > 1 and span.end > TOKENS_MAX:
            rows_TD = rows_TD.copy()
            rows_TD[row, 0] = float("inf")
        row += span.tokens
    return batch, rows_TD


if __name__ == "__main__":
    Packing.fit = fit  # type: ignore[method-assign, assignment]
    main()
