"""The directory that a stage loads from: links to parts, and an index of just these.

One *view* for each range of layers, so that two devices of a PC can hold different layers of a
model and share what both need. A view is put together after everything in it has been checked, and
appears at once, by a rename; its time of change says when it was last asked for.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from molink.checkpoint.checkpoint import INDEX

__all__ = ["ModelFolder", "make_view"]

NOT_PLAIN = re.compile(r"[^A-Za-z0-9]+")

NAME_CHARS_MAX = 60
"""Of a model's name in a folder's name."""

REVISION_CHARS = 12
"""Of the content's hash there: for telling a model's versions apart, not for trust."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where the parts and views of one version of a model lie."""

    root: Path

    @classmethod
    def of(cls, directory: Path, model: str, revision: str) -> "ModelFolder":
        """In the directory of all weights."""
        name = NOT_PLAIN.sub("-", model).strip("-").lower()[-NAME_CHARS_MAX:]
        return cls(directory / "models" / f"{name}-{revision[:REVISION_CHARS]}")

    @property
    def parts(self) -> Path:
        """Files of ours."""
        return self.root / "parts"

    def view(self, layers: range) -> Path:
        """What a stage of these layers loads."""
        return self.root / f"layers-{layers.start}-{layers.stop}"


def make_view(view: Path, files: Mapping[str, Path], weight_map: Mapping[str, str]) -> None:
    """Links by name to `files`, and an index (tensor to name) of them; replaces an older view."""
    draft = view.with_name(f"{view.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, target in files.items():
        (draft / name).symlink_to(os.path.relpath(target, view))
    index = {"metadata": {}, "weight_map": dict(weight_map)}
    (draft / INDEX).write_text(json.dumps(index), encoding="utf-8")
    shutil.rmtree(view, ignore_errors=True)
    draft.replace(view)
