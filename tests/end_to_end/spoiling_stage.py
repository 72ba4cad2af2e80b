"""A stage that is a head and spoils its rows of long prompts on their way out."""

import os
from dataclasses import dataclass

from molink.stage.loop import StageLoop
from molink.stage.packing import Packing
from molink.stage.stage_process import main

SPOILS = "MOLINK_TESTS_SPOILT_ROWS"
"""Variable of the environment: in batches of so many rows and more it spoils the first."""


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


if __name__ == "__main__":
    spoiling = Spoiling(int(os.environ[SPOILS]))
    StageLoop.run = lambda loop: spoiling.run_as(loop)
    Packing.pack = lambda packing, rows, codec: spoiling.spoil(packing, rows, codec)
    main()
