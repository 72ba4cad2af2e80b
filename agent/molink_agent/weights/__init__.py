"""Fetches the weights of a stage's layers, and nothing else of the model.

`ensure_weights` is the one call: when it returns, a directory is there that the stage's loader
takes as a checkpoint, and every byte that the stage will read of it has been compared with its
checksum in this very call. On the way: `layout` says which bytes of the coordinator's files make
which of ours, `part_file` keeps one of ours and knows which pieces of it are good, `download` asks
for what is missing, `block_client` speaks HTTP, `weights_dir` keeps to the disk that is lent and
puts together the directory, `hub` fetches whole files from the hub instead.
"""

from molink_agent.weights.download import ensure_weights
from molink_agent.weights.source import CoordinatorSource, HubSource, Source, WeightsLimits

__all__ = ["CoordinatorSource", "HubSource", "Source", "WeightsLimits", "ensure_weights"]
