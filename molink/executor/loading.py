"""From a model's name to a stage that is ready to compute.

A stage first proves, on a miniature of the model, that its architecture can be cut at all
(`self_test`), because a wrong answer is only seen in numbers; then it loads its weights and no
others (`weights`), and makes room for its KV.
"""

from dataclasses import dataclass

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.executor.devices import choose_device, choose_dtype, return_freed_memory
from molink.executor.self_test import check_architecture
from molink.executor.stage import StageExecutor
from molink.executor.weights import Progress, StagePart, load_model, load_model_config

__all__ = ["StageOptions", "load_stage"]

LOADING_SHARE_OF_PROGRESS = 0.7
"""Of the progress bar: files are fetched and opened first, then weights are rearranged."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How a stage is to be loaded; names as on the command line."""

    device: str = "auto"
    dtype: str = "auto"
    kv_tokens: int | None = None
    """None: a share of the memory that is free once the weights are loaded."""
    stages_here: int = 1
    """How many stages share this PC's memory."""
    self_test: bool = True
    """Whether to prove first, on a tiny model of the same architecture, that stages compute what
    the whole does.
    """


def load_stage(
    model: str,
    layers: range,
    options: StageOptions | None = None,
    progress: Progress = lambda fraction: None,
) -> StageExecutor:
    """Load `layers` of a model directory or hub id.

    Raises UserError (a subclass of it) with one sentence.
    """
    options = options or StageOptions()
    checkpoint = open_checkpoint(model)
    description = describe(checkpoint)
    part = StagePart(layers, description.layers)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device, description.dtype)
    config = load_model_config(checkpoint)
    if options.self_test:
        check_architecture(config, description)
    share = LOADING_SHARE_OF_PROGRESS
    weights = load_model(checkpoint, config, part, dtype, lambda done: progress(share * done))
    stage = StageExecutor(weights.to(device), part, description, device, dtype)
    del weights
    stage.prepare(
        options.kv_tokens,
        lambda done: progress(share + (1 - share) * done),
        options.stages_here,
    )
    return_freed_memory()
    progress(1.0)
    return stage
