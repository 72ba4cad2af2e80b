"""Coverage-guided fuzzing of every decoder: `python -m tests.fuzz.guided --runs 1000000`.

Atheris (libFuzzer for Python) keeps an input when it reaches code that none before has reached, and
mutates it further. Each decoder has a process of its own, so that a crash or a hang of one is found
and the others go on. A finding is kept in FOLDER/NAME/found; `--only NAME --input FILE` plays it.

An input must raise nothing but what the target allows, end within SECONDS_MAX, and fit its memory:
exactly measured for one input in SAMPLED, by the limit of the address space for all.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from random import Random

FOLDER = Path(".fuzz")
RUNS = 1_000_000
SECONDS_MAX = 10
"""Of one input, also on a machine that does much else."""

SAMPLED = 16
SLACK_BYTES = 2**30
"""Address space for the interpreter itself and libFuzzer, whose corpus grows."""

INSTRUMENTED = ["molink", "molink_agent", "molink_scheduler", "aioice"]

FIGURES = {
    "inputs": re.compile(r"stat::number_of_executed_units:\s*(\d+)"),
    "memory_mb": re.compile(r"stat::peak_rss_mb:\s*(\d+)"),
    "corpus": re.compile(r"stat::new_units_added:\s*(\d+)"),
}
FOUND = re.compile(r"(?: === Uncaught Python exception: ===\n(.*)|ERROR: (libFuzzer: .*))")


def fuzz_one(name: str, runs: int, file: str | None) -> None:
    """Fuzz one decoder in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import BY_NAME
    from tests.fuzz.mutations import changed_value
    from tests.fuzz.target import INPUT_BYTES_MAX

    target, folder = BY_NAME[name], FOLDER / name
    corpus, found = folder / "corpus", folder / "found"
    for made in (corpus, found):
        made.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(target.seeds):
        (corpus / f"seed-{place:03d}").write_bytes(seed)
    inputs = 0

    def run(data: bytes) -> None:
        nonlocal inputs
        inputs += 1
        measured = inputs % SAMPLED == 0
        if measured:
            tracemalloc.start()
        try:
            target.run(data)
        except target.allowed:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1] if measured else 0
            tracemalloc.stop()
        if peak > target.memory_bytes:
            raise MemoryError(f"{peak} bytes for one input, {target.memory_bytes} is the most")

    def mutate(data: bytes, bytes_max: int, seed: int) -> bytes:
        random = Random(seed)
        changed = changed_value(data, target.shape, random) if random.random() < 0.5 else None
        if changed is None or len(changed) > bytes_max:
            return atheris.Mutate(data, bytes_max)
        return changed

    limit = _address_space_bytes() + target.memory_bytes + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    options = [
        f"-runs={runs}",
        "-seed=13",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={SECONDS_MAX}",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
        "-close_fd_mask=1",
        f"-artifact_prefix={found}/",
        str(corpus) if file is None else file,
    ]
    mutator = {} if target.shape == "bytes" else {"custom_mutator": mutate}
    atheris.Setup([sys.argv[0], *options], run, **mutator)
    atheris.Fuzz()


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fuzz_in_child(name: str, runs: int) -> dict[str, object]:
    """What became of one decoder."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz.guided", "--only", name, "--runs", str(runs)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    log = ended.stderr
    figures: dict[str, object] = {"target": name, "seconds": round(time.monotonic() - began_s, 1)}
    for key, pattern in FIGURES.items():
        match = pattern.search(log)
        figures[key] = int(match[1]) if match else 0
    match = FOUND.search(ended.stdout + log)
    if ended.returncode:
        figures["found"] = (match[1] or match[2]) if match else log[-500:]
    return figures


def main() -> None:
    """Fuzz the decoders that are named, or all, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of decoders; without: all")
    parser.add_argument("--runs", type=int, default=RUNS, help="inputs for each")
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--input", help="with --only: play this file")
    typed = parser.parse_args()
    if typed.only:
        fuzz_one(typed.only, typed.runs, typed.input)
        return
    from tests.fuzz.targets import TARGETS

    os.nice(19)
    figures: list[dict[str, object]] = []
    for name in typed.names or [target.name for target in TARGETS]:
        figures.append(fuzz_in_child(name, typed.runs))
        print(json.dumps(figures[-1]), flush=True)
        if typed.out:
            typed.out.write_text(json.dumps({"decoders": figures}, indent=1) + "\n")
    sys.exit(any("found" in one for one in figures))


if __name__ == "__main__":
    main()
