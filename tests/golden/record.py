"""Writes the encodings that the tests compare with: `python -m tests.golden.record`.

By itself it only adds what is not recorded yet. An encoding that was recorded is what deployed
nodes, files and users rely on, so it is written anew only when it is named (CODEC/VALUE), which
goes with a change of the protocol's version or with a way to read the old form.
"""

import json
import sys
from pathlib import Path

from tests.golden.codec import Codec
from tests.golden.codecs import CODECS

RECORDED = Path(__file__).parent / "recorded"


def recorded(codec: Codec) -> dict[str, str]:
    path = RECORDED / f"{codec.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record(anew: set[str]) -> None:
    for codec in CODECS:
        before, now = recorded(codec), codec.encodings()
        kept = {n: e for n, e in before.items() if f"{codec.name}/{n}" not in anew}
        after = now | kept
        if after != before:
            lines = json.dumps(after, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
            (RECORDED / f"{codec.name}.json").write_text(lines, encoding="utf-8")
            print(f"{codec.name}: {len(after)} recorded")


if __name__ == "__main__":
    record(set(sys.argv[1:]))
