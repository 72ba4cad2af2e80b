"""A stage that is a head and spoils its rows of long prompts on their way out."""

from dataclasses import dataclass

from molink.stage.loop import StageLoop
from molink.stage.packing import Packing

SPOIL = f"import {__name__} as spoiling; spoiling.spoil({{rows_min}})"
"""Python that a stage's process runs first: it spoils the first of so many rows and more."""


@dataclass
class Spoiling:
    """Packer of rows, in place of a stage's own."""

    rows_min: int
    is_head: bool = False
    run = staticmethod(StageLoop.run)
    pack = staticmethod(Packing.pack)

    def run_as(self, loop):
        self.is_head = loop.layers.is_head
        self.run(loop)

    def spoil(self, packing, rows_TD, codec):
        if self.is_head and len(rows_TD) >= self.rows_min:
            rows_TD = rows_TD.copy()
            rows_TD[0, 0] = float("inf")
        return self.pack(packing, rows_TD, codec)


def spoil(rows_min: int):
    spoiling = Spoiling(rows_min)
    StageLoop.run = lambda loop: spoiling.run_as(loop)
    Packing.pack = lambda packing, rows, codec: spoiling.spoil(packing, rows, codec)
