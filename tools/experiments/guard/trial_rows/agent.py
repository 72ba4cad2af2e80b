"""`molink` whose stages run another module: `python -m ...trial_rows.agent STAGE agent join ...`.

STAGE names a module of `stages`, which does what an honest stage does, but for one thing.
"""

import sys

from molink.cli.main import main
from molink.node import stage_handle

STAGES = "tools.experiments.guard.trial_rows.stages"

if __name__ == "__main__":
    stage_handle.STAGE_MODULE = f"{STAGES}.{sys.argv.pop(1)}"
    main()
