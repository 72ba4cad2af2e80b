"""Tries every family and writes the page anew: `make models`, some minutes.

With names (of families or published checkpoints) only these are tried again; with `--page` none.
"""

import json
import os
import sys
from dataclasses import asdict

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before torch is imported: trials are processes forked from this one, which must have one thread.

import torch
import transformers

from tools.models_page.page import PAGE, RESULTS, page, read_results
from tools.models_page.trials import Trial, all_trials


def main() -> None:
    """Write the results, then the page."""
    names = set(sys.argv[1:])
    if names != {"--page"}:
        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        known = {trial.name: trial for trial in read_results().trials} if names else {}
        kept = {name: trial for name, trial in known.items() if name not in names}
        trials = [asdict(trial) for trial in all_trials(_say, kept)]
        results = {"transformers": transformers.__version__, "trials": trials}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(read_results()), encoding="utf-8")


def _say(trial: Trial) -> None:
    print(f"{trial.name}: {'served' if trial.served else trial.why}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
