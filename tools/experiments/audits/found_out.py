"""How soon is a node found out that negates what one layer gives?

    python -m tools.experiments.audits.found_out --out DIR

First over stages in this process: three rings of a model, each cut elsewhere, of which one has the
lie, in turn in every layer; each audit compares two of them, and where these contradict each other
the third. The same number of audits without a lie is to accuse nobody. Then over real agents
(`--agents`, 0 for none): one of them computes with the lie, users ask without a pause, and every
request is audited, until it is quarantined.
"""

import asyncio
import json
import time
import urllib.request
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import click

from molink.errors import UserError
from molink_scheduler.audit import AuditedRing, Disagreement, Disagreements, disagreement
from tools.experiments.audits.honest_distances import DEMO, texts_of
from tools.experiments.audits.in_process import InProcessRing, flip
from tools.experiments.harness.agents import AgentsRun, Report, agents_run
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import MOLINK, running

__all__ = ["main"]

KINDS = (("float32", "raw"), ("bfloat16", "int8"))

SPANS_MAX = 100
"""That are to suffice."""

HONEST_AUDITS = 50

LIAR = """\
import os, sys
if "molink.stage.stage_process" in sys.orig_argv:
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from molink.engine import loading
    from tools.experiments.audits.in_process import flip
    honest = loading.load_stage
    def lying(*args, **kwargs):
        stage = honest(*args, **kwargs)
        flip(stage, stage.layers.start)
        return stage
    loading.load_stage = lying
"""
"""What Python runs first in the processes of the agent that lies; the self-test would find it."""

SERVING_WITHIN_S, FOUND_WITHIN_S = 180.0, 240.0
ANSWER_TOKENS = 200


@experiment
@click.option("--agents", default=3, show_default=True, help="PCs with room for the model each.")
@click.option("--layers", type=int, help="That lie, each in turn; all without it.")
def main(out: Path, agents: int, layers: int | None) -> None:
    """Print after how many spans each lie was found, and what became of the users' streams."""
    rows = [_in_process(dtype, codec, layers) for dtype, codec in KINDS]
    report: dict[str, Any] = {"in_process": rows}
    head = ["rings of real stages, one process", "spans until found, median", "most", "wrongly"]
    cells = [
        [f"{row['dtype']}, {row['codec']}", f"{row['median']:.0f}", str(row["most"]), row["honest"]]
        for row in rows
    ]
    show(markdown_table(head, cells))
    if agents:
        report["agents"] = found = _over_agents(agents)
        show("\n".join(f"{name}: {value}" for name, value in found.items()))
    write_report(out, "found_out", report)


def _in_process(dtype: str, codec: str, count: int | None) -> dict[str, Any]:
    whole = InProcessRing.load(DEMO, (0, 9), dtype=dtype)
    vocabulary = whole.stages[0].description.vocabulary_size
    all_cuts = ((0, 9), (0, 4, 9), (0, 3, 6, 9))
    spans = []
    for layer in range(9)[:count]:
        rings = [InProcessRing.load(DEMO, c, at, dtype, codec) for at, c in enumerate(all_cuts)]
        culprit = next(at for at, one in enumerate(rings[2].stages) if layer in one.layers)
        flip(rings[2].stages[culprit], layer)
        rings[2] = InProcessRing(2, rings[2].stages, dtype, codec)
        found = _audits(rings, texts_of(vocabulary, 100, layer), Random(layer))
        if found[0] != [f"ring 2 stage {culprit}"]:
            raise UserError(f"the lie in layer {layer} was not found: {found}")
        spans.append(found[1])
    honest = [InProcessRing.load(DEMO, c, at, dtype, codec) for at, c in enumerate(all_cuts)]
    accused = _audits(honest, texts_of(vocabulary, HONEST_AUDITS, 99), Random(99))
    wrongly = f"{accused[2]} of {HONEST_AUDITS} audits"
    figures = {"median": sorted(spans)[len(spans) // 2], "most": max(spans), "honest": wrongly}
    return {"dtype": dtype, "codec": codec, "spans": spans, **figures}


def _audits(
    rings: list[InProcessRing], texts: list[list[int]], random: Random
) -> tuple[list[str], int, int]:
    """Who was found out, after how many spans, and how many audits failed."""
    judge, spans, failed = Disagreements(), 0, 0
    for at, text in enumerate(texts):
        order = random.sample(rings, len(rings))
        told = [ring.audit(text, 64) for ring in order[:2]]
        findings = _findings(told)
        if findings:
            failed += 1
            told.append(order[2].audit(text, 64))
            findings = _findings(told)
        spans += sum(len(one.stages) for one in told)
        if guilty := judge.add(findings, float(at)):
            return guilty, spans, failed
    return [], spans, failed


def _findings(told: list[AuditedRing]) -> list[Disagreement]:
    found = [disagreement(*pair) for pair in combinations(told, 2)]
    return [one for one in found if one is not None]


# -- over agents ----------------------------------------------------------------------------------


def _over_agents(count: int) -> dict[str, Any]:
    with agents_run("demo", ("--audit-share", "1", "--min-nodes", str(count))) as run:
        (run.folder / "lie").mkdir()
        (run.folder / "lie" / "sitecustomize.py").write_text(LIAR)
        here = str(Path(__file__).parents[3])
        lie = {"PYTHONPATH": f"{run.folder / 'lie'}:{here}"}
        for number in range(count - 1):
            run.join(f"honest{number}")
        place = ("--data-dir", str(run.folder / "liar"), "--listen", "127.0.0.1")
        words = ("agent", "join", run.invite, "--name", "liar", *place, "--no-map-ports")
        with running(MOLINK, *words, environment=lie, quiet=True):
            run.wait(lambda report: _rings(report) >= count, SERVING_WITHIN_S)
            return asyncio.run(_until_found(run))


def _rings(report: Report) -> int:
    return len(report.get("rings", ()))


async def _until_found(run: AgentsRun) -> dict[str, Any]:
    began_s, ended = time.monotonic(), asyncio.Event()
    users = [asyncio.create_task(_user(run.url, number, ended)) for number in range(4)]
    try:
        report = await asyncio.to_thread(run.wait, _has_quarantined, FOUND_WITHIN_S)
        found_s = time.monotonic() - began_s
        await asyncio.to_thread(run.wait, _serves_without_liar, SERVING_WITHIN_S)
    finally:
        ended.set()
    answers = [await user for user in users]
    events = await asyncio.to_thread(_get, f"{run.url}/cluster/events?after=0")
    said = [one["text"] for one in events["events"] if one["kind"] == "node_quarantined"]
    moved = sum(one["kind"] == "request_moved" for one in events["events"])
    quarantined = [node["name"] for node in report["nodes"] if node["quarantined"]]
    return {
        "quarantined": quarantined,
        "said": said,
        "audits": report["audits"],
        "found_s": found_s,
        "streams_moved": moved,
        "answers": sum(whole for whole, _, _ in answers),
        "answers_failed": sum(failed for _, failed, _ in answers),
        "answers_marked": sum(marked for _, _, marked in answers),
    }


async def _user(url: str, number: int, ended: asyncio.Event) -> tuple[int, int, int]:
    """Answers that came whole, that failed, and that were marked as to be audited."""
    whole = failed = marked = 0
    while not ended.is_set():
        try:
            is_whole, is_marked = await asyncio.to_thread(_ask, url, number + whole)
            whole, failed = whole + is_whole, failed + (not is_whole)
            marked += is_marked
        except OSError:
            failed += 1
    return whole, failed, marked


def _ask(url: str, seed: int) -> tuple[bool, bool]:
    prompt = [1 + (seed * 7 + at * 3) % 4000 for at in range(20)]
    body = {
        "prompt_token_ids": prompt,
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "seed": seed,
    }
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        is_marked = answer.headers.get("X-MoLink-Audited") is not None
        return bool(json.load(answer)), is_marked


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _has_quarantined(report: Report) -> bool:
    return any(node["quarantined"] for node in report["nodes"])


def _serves_without_liar(report: Report) -> bool:
    serving = {stage["node"] for ring in report["rings"] for stage in ring["stages"]}
    held = {node["name"] for node in report["nodes"] if node["quarantined"]}
    return bool(serving) and not serving & held


if __name__ == "__main__":
    main()
