"""From a model's name to a stage that is ready to compute.

A stage first proves, on a miniature of the model, that its architecture can be cut at all
(`self_test`), because a wrong answer is only seen in numbers; then it loads its weights and no
others (`weights`), and makes room for its KV.
"""

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.executor.devices import choose_device, choose_dtype, return_freed_memory
from molink.executor.self_test import check_architecture
from molink.executor.stage import StageExecutor
from molink.executor.weights import Progress, StagePart, load_model, load_model_config
from molink.stage_protocol.messages import StageWork

__all__ = ["load_stage"]

LOADING_SHARE_OF_PROGRESS = 0.7
"""Of the progress bar: files are fetched and opened first, then weights are rearranged."""


def load_stage(
    model: str,
    work: StageWork,
    progress: Progress = lambda fraction: None,
    *,
    stages_here: int = 1,
    self_test: bool = True,
) -> StageExecutor:
    """Load the layers of a model directory or hub id.

    `stages_here` share this PC's memory; `self_test` proves first, on a tiny model of the same
    architecture, that stages compute what the whole does. Raises UserError (a subclass of it) with
    one sentence.
    """
    checkpoint = open_checkpoint(model)
    description = describe(checkpoint)
    part = StagePart(range(*work.layers), description.layers)
    device = choose_device(work.device)
    dtype = choose_dtype(work.dtype, device, description.dtype)
    config = load_model_config(checkpoint)
    if self_test:
        check_architecture(config, description)
    share = LOADING_SHARE_OF_PROGRESS
    weights = load_model(checkpoint, config, part, dtype, lambda done: progress(share * done))
    stage = StageExecutor(weights.to(device), part, description, device, dtype)
    del weights
    stage.prepare(
        work.kv_tokens,
        lambda done: progress(share + (1 - share) * done),
        stages_here,
    )
    return_freed_memory()
    progress(1.0)
    return stage
