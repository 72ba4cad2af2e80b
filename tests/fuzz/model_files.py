"""Mutated models for importers and planners: `python -m tests.fuzz.model_files --out DIR`.

Whoever publishes a model decides what counts, lengths and types its files name, and an operator or
a volunteer's agent reads them. Each input is a small model of which some things were changed; it is
imported, planned or read to be served, whole, in a process that may take 2 GB of memory. It may end
in nothing but a result or a MolinkError, within a second of the CPU's time.

Which input a number stands for follows from the number alone: `--only SUBJECT --first N --inputs 1`
plays one again, with the traceback of what it raises.
"""

import argparse
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.folder_changes import changed_json, changed_table

MEMORY_BYTES = 2 * 2**30
"""Of address space: with the libraries, which take 0.6 GB of it."""

SECONDS_MAX = 1.0
HANGS_S = 10.0
"""Of the CPU's time, after which an input is given up."""

FOUND_SHOWN = 20
MEMORY = Path("/dev/shm")


# -- good models ----------------------------------------------------------------------------------

GGUF_SEEDS = ("llama", "tied_llama", "mixtral", "qwen3", "qwen3_moe", "gemma2", "phi3", "gpt_oss")
FOLDER_SEEDS = ("llama", "tied_llama", "qwen3_moe", "gemma3_text", "gpt2", "deepseek_v3")
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3}


def write_seeds(folder: Path) -> None:
    """Good models: GGUF files with each kind of vocabulary, and folders of the library's form."""
    from molink.importing.gguf.file import import_gguf
    from tests.engine.tiny_models import tiny_config, tiny_model
    from tests.importing.gguf_models import save_gguf

    for name in GGUF_SEEDS:
        save_gguf(name, folder / f"{name}.gguf", **SIZES)
        shutil.rmtree(folder / f"{name}-plain")
    import_gguf(folder / "llama.gguf", folder / "imported", None, lambda *_: None)
    for name in FOLDER_SEEDS:
        sizes = {} if name in ("gpt2", "deepseek_v3") else SIZES
        tiny_model(tiny_config(name, **sizes)).bfloat16().save_pretrained(folder / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / "imported" / file, folder / name)
        settings = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
        (folder / name / "generation_config.json").write_text(json.dumps(settings))


# -- mutations ------------------------------------------------------------------------------------


@dataclass
class Inputs:
    """Mutated models, written to one place one after the other."""

    seeds: Path
    place: Path
    _taken_apart: dict[str, Any] = field(default_factory=dict)

    def gguf(self, random: Random) -> Path:
        """A mutated GGUF file."""
        from tests.fuzz.gguf_changes import mutated_gguf, taken_apart

        name = random.choice(GGUF_SEEDS)
        if name not in self._taken_apart:
            self._taken_apart[name] = taken_apart(self.seeds / f"{name}.gguf")
        pairs, tensors = self._taken_apart[name]
        pairs = _with_vocabulary(pairs, random)
        path = self.place / "model.gguf"
        path.write_bytes(mutated_gguf(pairs, tensors, random))
        return path

    def folder(self, random: Random) -> Path:
        """A folder of which one file was mutated, sometimes two."""
        seed = self.seeds / random.choice((*FOLDER_SEEDS, "imported"))
        folder = self.place / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(seed, folder)
        names = sorted(path.name for path in folder.iterdir())
        for name in random.choices(["config.json", *names], k=random.choice((1, 1, 1, 2))):
            path = folder / name
            change = changed_table if name.endswith(".safetensors") else changed_json
            path.write_bytes(change(path.read_bytes(), random))
        return folder


def _with_vocabulary(pairs: list[Any], random: Random) -> list[Any]:
    """The same metadata with one of the four kinds of vocabulary, and settings that few files
    have."""
    from tests.checkpoint.gguf.written import ARRAY, STRING, Typed

    kind = random.choice(("gpt2", "llama", "gemma4", "t5"))
    changed = dict(pairs)
    changed["tokenizer.ggml.model"] = Typed(STRING, kind)
    tokens = changed["tokenizer.ggml.tokens"].value
    scores = [Typed(6, -float(number)) for number in range(len(tokens))]
    changed["tokenizer.ggml.scores"] = Typed(ARRAY, scores)
    changed["tokenizer.chat_template"] = Typed(STRING, "{{ messages }}")
    changed["general.sampling.temp"] = Typed(6, 0.7)
    changed["general.sampling.top_k"] = Typed(5, 20)
    return list(changed.items())


# -- what is done with one ------------------------------------------------------------------------

NODES = """
[[nodes]]
name = "anna"
gpu = "rtx3060"
upload_mbps = 40
download_mbps = 100

[[nodes]]
name = "ben"
gpu = "rtx4090"
upload_mbps = 20
download_mbps = 100
"""


def import_of_gguf(inputs: Inputs, random: Random) -> Callable[[], object]:
    from molink.importing.gguf.file import import_gguf

    path, out = inputs.gguf(random), _empty(inputs)
    return lambda: import_gguf(path, out, None, lambda *_: None)


def plan_of_gguf(inputs: Inputs, random: Random) -> Callable[[], object]:
    return _plan(inputs, inputs.gguf(random), None)


def plan_of_folder(inputs: Inputs, random: Random) -> Callable[[], object]:
    """Of its weights, or of its config alone."""
    folder = inputs.folder(random)
    return _plan(inputs, random.choice((folder, folder, folder / "config.json")), None)


def plan_of_rounded(inputs: Inputs, random: Random) -> Callable[[], object]:
    return _plan(inputs, inputs.folder(random), random.choice(("int4", "int8")))


def import_of_folder(inputs: Inputs, random: Random) -> Callable[[], object]:
    from molink.importing.plain_model import import_plain

    folder, out = inputs.folder(random), _empty(inputs)
    bits: Any = random.choice(("int4", "int8"))
    return lambda: import_plain(folder, out, bits, 32, lambda *_: None)


def read_to_serve(inputs: Inputs, random: Random) -> Callable[[], object]:
    from molink.serving.served_model import read_served_model

    folder = inputs.folder(random)
    return lambda: read_served_model(str(folder), None)


def _plan(inputs: Inputs, model: Path, weights: Any) -> Callable[[], object]:
    from molink.cli.models import plan

    nodes = inputs.place / "nodes.toml"
    nodes.write_text(NODES)
    goal = plan._goal(250.0, 2048, 768, 256)

    def run() -> object:
        planned = plan._planned(str(model), "auto", weights)
        plan._recoded(str(model))
        return plan._make_plan(planned, nodes, goal, None, None)

    return run


def _empty(inputs: Inputs) -> Path:
    out = inputs.place / "out"
    shutil.rmtree(out, ignore_errors=True)
    return out


SUBJECTS: dict[str, Callable[[Inputs, Random], Callable[[], object]]] = {
    "import-gguf": import_of_gguf,
    "plan-gguf": plan_of_gguf,
    "plan-folder": plan_of_folder,
    "plan-rounded": plan_of_rounded,
    "import-folder": import_of_folder,
    "serve-folder": read_to_serve,
}

SLOW = ("plan-rounded", "import-folder")
"""Those that make the library's class of a model, each for a few hundredths of a second."""


# -- one process ----------------------------------------------------------------------------------


class _TooLong(BaseException):
    """Raised in the midst of an input that has taken too long."""


@dataclass
class Figures:
    """What became of some inputs."""

    inputs: int = 0
    taken: int = 0
    """Of them: read, planned or imported, not refused."""
    longest_s: float = 0.0
    longest: int = 0
    """Its number."""
    memory_mib: int = 0
    found: list[str] = field(default_factory=list)
    """Numbers of inputs that did what none may, and what that was."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def outcome(inputs: Inputs, subject: str, number: int, *, shows: bool) -> tuple[str, float]:
    """What an input came to ("" for a result, "refused" for a MolinkError, else what it raised),
    and the seconds."""
    from molink.errors import MolinkError

    run = SUBJECTS[subject](inputs, Random(f"{subject} {number}"))
    began_s, said = time.process_time(), ""
    try:
        with _limited(HANGS_S):
            run()
    except MolinkError as error:
        said = "refused" if "\n" not in str(error).strip() else f"lines: {error}"
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error)[:160]}"
        if shows:
            traceback.print_exc()
    return said, time.process_time() - began_s


def look_at(subject: str, first: int, count: int, seeds: Path, *, shows: bool = False) -> Figures:
    """Figures of some inputs, whose numbers are written to PLACE/number one by one."""
    import molink.importing.plain_model
    import molink.serving.served_model  # noqa: F401 (before memory is limited)

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=seeds) as place:
        inputs, noted = Inputs(seeds, Path(place)), (seeds / f"{subject}.number").open("w")
        for number in range(first, first + count):
            noted.seek(0)
            noted.write(f"{number:>12}")
            noted.flush()
            said, took_s = outcome(inputs, subject, number, shows=shows)
            if took_s > SECONDS_MAX:  # What is loaded once, or on a busy machine.
                took_s = min(took_s, outcome(inputs, subject, number, shows=shows)[1])
            figures.inputs += 1
            figures.taken += not said
            if took_s > figures.longest_s:
                figures.longest_s, figures.longest = took_s, number
            if said not in ("", "refused"):
                figures.found.append(f"{number}: {said}")
            elif took_s > SECONDS_MAX:
                figures.found.append(f"{number}: took {took_s:.1f} s")
    figures.memory_mib = peak_mib()
    return figures


def peak_mib() -> int:
    """The most that was resident of this program. `ru_maxrss` would be that of the process which
    has started it, where that had more."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


# -- all ------------------------------------------------------------------------------------------


PROGRAM = (sys.executable, "-m", "tests.fuzz.model_files")


def look_in_child(
    subject: str, first: int, count: int, seeds: Path, program: Sequence[str] = PROGRAM
) -> Figures:
    """The same in processes of their own: where one dies, the next goes on behind that input."""
    total, end = Figures(), first + count
    while first < end:
        command = [*program, "--only", subject]
        command += ["--first", str(first), "--inputs", str(end - first), "--seeds", str(seeds)]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, errors="replace"
        )
        if ended.returncode == 0:
            return _added(total, Figures(**json.loads(ended.stdout.splitlines()[-1])))
        died = int((seeds / f"{subject}.number").read_text())
        total.inputs += died + 1 - first
        total.found.append(f"{died}: ended with {ended.returncode}: {ended.stderr[-160:]}")
        first = died + 1
    return total


def _added(one: Figures, other: Figures) -> Figures:
    slower = max(one, other, key=lambda figures: figures.longest_s)
    return Figures(
        one.inputs + other.inputs,
        one.taken + other.taken,
        slower.longest_s,
        slower.longest,
        max(one.memory_mib, other.memory_mib),
        one.found + other.found,
    )


def look_at_all(count: int, chunk: int, minutes: float, out: Path | None) -> dict[str, Figures]:
    """Some thousand inputs of each subject in turn, until there are `count` together or time is
    up."""
    figures = {subject: Figures() for subject in SUBJECTS}
    end_s = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        write_seeds(Path(folder))
        for subject in cycle(SUBJECTS):
            if sum(one.inputs for one in figures.values()) >= count or time.monotonic() > end_s:
                break
            count_here = chunk // 10 if subject in SLOW else chunk
            seen = look_in_child(subject, figures[subject].inputs, count_here, Path(folder))
            figures[subject] = _added(figures[subject], seen)
            if out:
                told = {name: asdict(one) for name, one in figures.items()}
                (out / "guard-models.json").write_text(json.dumps(told, indent=1) + "\n")
    return figures


def table(figures: dict[str, Figures]) -> str:
    """One row for each subject."""
    rows = [
        "| read as | inputs | taken | longest, s | memory, MiB | found |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    rows += [
        f"| {name} | {one.inputs:,} | {one.taken:,} | {one.longest_s:.2f} | {one.memory_mib} "
        f"| {len(one.found)} |"
        for name, one in figures.items()
    ]
    return "\n".join(rows)


def main() -> None:
    """Look at all subjects, or in this process at one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all subjects together")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which it ends early")
    parser.add_argument("--chunk", type=int, default=2000, help="inputs of a process")
    parser.add_argument("--out", type=Path, help="folder for the figures")
    parser.add_argument("--only", choices=SUBJECTS, help="this subject, in this process")
    parser.add_argument("--first", type=int, default=0, help="with --only: the first input")
    parser.add_argument("--seeds", type=Path, help=argparse.SUPPRESS)
    typed = parser.parse_args()
    if typed.only:
        with tempfile.TemporaryDirectory() as made:
            if typed.seeds is None:
                write_seeds(Path(made))
            seeds = typed.seeds or Path(made)
            seen = look_at(typed.only, typed.first, typed.inputs, seeds, shows=typed.seeds is None)
            print(json.dumps(asdict(seen)))
        return
    if typed.out:
        typed.out.mkdir(parents=True, exist_ok=True)
    figures = look_at_all(typed.inputs, typed.chunk, typed.minutes, typed.out)
    print(table(figures))
    found = [f"{name} {one}" for name, figure in figures.items() for one in figure.found]
    print("\n".join(found[:FOUND_SHOWN]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
