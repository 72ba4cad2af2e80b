"""Small worlds whose outcome can be worked out by hand."""

from dataclasses import dataclass

import pytest

from molink_scheduler.batch import BatchClass
from molink_sim.scenario import LinkSpec, RequestArrival, RingSpec, StageSpec


@dataclass(frozen=True)
class PlainCost:
    """A fixed time, one for each row and one for each key."""

    fixed_s: float = 0.005
    row_s: float = 0.0001
    kv_token_s: float = 0.0

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        return self.fixed_s + rows * self.row_s + kv_tokens * self.kv_token_s


@pytest.fixture
def plain_cost():
    """The class, to make one's own."""
    return PlainCost


@pytest.fixture
def plain_ring():
    """Makes rings: `plain_ring(stages=3, mbps=100, one_way_s=0.03)`."""

    def make(
        stages: int = 3,
        mbps: float = 100.0,
        one_way_s: float = 0.03,
        *,
        cost: PlainCost | None = None,
        kv_tokens: int = 100_000,
        row_bytes: int = 8192,
        upload_mbps: float | None = None,
        links: tuple[LinkSpec, ...] | None = None,
    ) -> RingSpec:
        stage = StageSpec(8, cost or PlainCost(), kv_tokens, upload_mbps)
        links = links or (LinkSpec(mbps, one_way_s),) * stages
        return RingSpec((stage,) * stages, links, row_bytes)

    return make


@pytest.fixture
def even_arrivals():
    """Makes arrivals of one kind: `even_arrivals(count, every_s)`."""

    def make(
        count: int, every_s: float = 1.0, input_tokens: int = 200, output_tokens: int = 20
    ) -> list[RequestArrival]:
        return [
            RequestArrival(number * every_s, input_tokens, output_tokens) for number in range(count)
        ]

    return make
