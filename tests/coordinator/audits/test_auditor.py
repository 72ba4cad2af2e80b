"""The auditor over rings that answer at once: who lies is quarantined, and its streams move."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace

import pytest

from molink.control.messages.payloads import NodeHealth
from molink.control.registry.registry import Registry
from molink.coordinator.admin import ClusterAdmin
from molink.coordinator.audits import rerun as rerun_module
from molink.coordinator.audits.auditor import Auditor, AuditSettings
from molink.coordinator.audits.quarantine import EVIDENCE_MAX, Evidence
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.reports.node_reports import nodes_report
from molink.coordinator.requests.audit_queue import AUDIT_TOKENS_MIN, WAITING_MAX, AuditQueue
from molink.coordinator.requests.cluster_service import ClusterService
from molink.report.cluster import AuditReport
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink.serving.token_events import PromptLogprob, TokenEvent
from molink.stage_protocol.progress import StageProgress
from molink.tasks import background_tasks
from molink_scheduler.audit import NUMBERS
from molink_scheduler.request import SamplingParams
from tests.coordinator.examples import PROFILE, WORK
from tests.coordinator.upkeep.world import CARD, REPORT, FakeClient, collect, world

PROMPT = (1, 2, 3, 4)


def sketch(tokens, layers, lies):
    """Of the rows before the first of the layers and behind each."""
    random = Random(str(tokens))
    places = [[random.gauss(0, len(tokens) ** 0.5) for _ in range(NUMBERS)] for _ in range(9)]
    sign = -1 if lies else 1
    first, *behind = places[layers[0] : layers[1] + 1]
    return (*first, *(sign * one for place in behind for one in place))


def health(stage):
    line = json.loads(json.dumps(asdict(stage)))
    return NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=line)


def without_sketch(w, name):
    """A report of a stage with all but its sketch."""
    before = w.book.node(name).health
    reports = before.stage.progress.reports + 1 if before is not None else 1
    return health(replace(REPORT, progress=StageProgress(reports=reports)))


def computing(w, liars, silent, mute, salts):
    """What answers audits in the place of `FakeClient.generate`, which answers users."""
    of_users = FakeClient.generate

    async def generate(self, request, output=(), stall_factor=1.0):
        if request.sampling.prompt_logprobs is None:
            request.timeline.numbered(1)
            async for event in of_users(self, request, output, stall_factor):
                yield event
            return
        salts.append(request.cache_salt)
        number, tokens = len(w.told) + len(self.seen), request.prompt_token_ids
        request.timeline.numbered(number)
        for stage in self.ring.stages:
            name = stage.node.node_id
            numbers = sketch(tokens, stage.layers, name in liars)
            told = replace(REPORT, recent_sketches=((number, len(tokens), numbers),))
            if name in mute:
                asyncio.get_running_loop().call_later(0.01, w.say, name, without_sketch(w, name))
            elif name not in silent:
                w.say(name, health(told))
        scores = tuple(PromptLogprob(token, -1.0, (), rank=1) for token in tokens[1:])
        yield TokenEvent((7,), "", finish_reason="length", prompt_logprobs=scores)

    return generate


@asynccontextmanager
async def audited(
    monkeypatch, tmp_path, rings, liars=(), silent=(), mute=(), size=2, share=1.0, salts=None
):
    """A world of rings, and an auditor of all requests, whose audits' salts go to `salts`. Who is
    `silent` reports nothing, who is `mute` all but what is audited."""
    registry = Registry.open(tmp_path)
    async with world(monkeypatch, size=size) as w, background_tasks() as tasks:
        w.service.audits.share, w.survives = share, True
        admin = ClusterAdmin(w.book, registry, w.service)
        auditor = Auditor(
            w.service, admin.quarantine, Evidence(tmp_path / "audits"), False, Random(1)
        )
        monkeypatch.setattr(
            FakeClient,
            "generate",
            computing(w, liars, silent, mute, [] if salts is None else salts),
        )
        tasks.create_task(auditor.run())
        w.join(*(f"{ring}{place}" for ring in "abcdef"[:rings] for place in range(size)))
        await w.until(lambda: len(w.serving) == rings)
        yield w, auditor, admin
    registry.close()


async def answer(w, tokens=2, salt=""):
    """One request of a user, wherever it goes, and its timeline."""
    timeline = RequestTimeline("m", len(PROMPT), tokens)
    sampling = SamplingParams(max_tokens=tokens)
    asked = GenerationRequest(PROMPT, sampling, cache_salt=salt, timeline=timeline)
    before = {id(client): len(client.seen) for client in w.clients}
    answering = asyncio.create_task(collect(w.service.generate(asked)))

    def asked_of():
        return [one for one in w.clients if len(one.seen) > before.get(id(one), 0)]

    await w.until(asked_of)
    for token in range(tokens):
        asked_of()[0].tokens.put_nowait(5 + token)
    assert await answering == [5, 6][:tokens]
    return timeline


async def audits(w, auditor, count):
    """Answer requests until so many audits have ended, or somebody is quarantined."""
    for number in range(1, count + 1):
        await answer(w)
        await w.until(lambda number=number: audits_ended(auditor) == number)
        if w.book.quarantined:
            return


def audits_ended(auditor):
    return sum(auditor.counts[one] for one in ("passed", "failed", "unfinished"))


async def test_honest_rings_pass(monkeypatch, tmp_path):
    async with audited(monkeypatch, tmp_path, rings=2) as (w, auditor, _):
        timeline = await answer(w)
        assert timeline.audited in ("pending", "passed")
        await w.until(lambda: timeline.audited == "passed")
        told = AuditReport(1.0, passed=1, failed=0, unfinished=0, spans=4, unfinished_by={})
        assert auditor.report() == told
        assert not (tmp_path / "audits").exists() and not w.book.quarantined


async def test_what_is_audited_is_cached_for_the_same_users_only(monkeypatch, tmp_path):
    salts = []
    async with audited(monkeypatch, tmp_path, rings=2, salts=salts) as (w, _, _):
        timeline = await answer(w, salt="5a17")
        await w.until(lambda: timeline.audited == "passed")
    assert salts == ["5a17", "5a17"]


async def test_a_liar_is_found_quarantined_and_its_streams_move(monkeypatch, tmp_path):
    async with audited(monkeypatch, tmp_path, rings=3, liars={"b1"}) as (w, auditor, _):
        await w.until(lambda: len(w.clients) == 3)
        (held,) = [client for client in w.clients if client.ring.stages[1].node.node_id == "b1"]
        elsewhere = [ring for ring in w.service.rings if ring.client is not held]
        for ring in elsewhere:
            ring.client.outstanding_tokens = 10**6
        stream = w.service.generate(GenerationRequest(PROMPT, SamplingParams(max_tokens=3)))
        held.tokens.put_nowait(11)
        assert (await anext(stream)).token_ids == (11,)
        for ring in elsewhere:
            ring.client.outstanding_tokens = 0
        held.outstanding_tokens = 10**6
        await audits(w, auditor, 40)
        assert set(w.book.quarantined) == {"b1"} and auditor.counts["spans"] <= 100
        rest = asyncio.create_task(collect(stream))
        others = [client for client in w.clients if client is not held]
        await w.until(lambda: any(seen[1] == (11,) for one in others for seen in one.seen))
        for client in others:
            client.tokens.put_nowait(12)
            client.tokens.put_nowait(13)
        assert await rest == [12, 13]
        await w.until(lambda: all("b1" not in names for names in w.members()))
        kinds = [event.kind for event in w.service.events.after(0)]
        assert kinds.count("node_quarantined") == 1 and "audit_failed" in kinds
        (told,) = [one for one in nodes_report(list(w.book), {}, {}, {}) if one.id == "b1"]
        assert told.quarantined and "contradict each other" in told.reason
        shown = [json.loads(path.read_text()) for path in sorted((tmp_path / "audits").iterdir())]
        assert len(shown) == auditor.counts["failed"] and shown[-1]["found_out"] == ["b1"]
        assert shown[-1]["tokens"] == [*PROMPT, 5, 6]


async def test_a_quarantine_outlasts_a_restart_until_the_operator_ends_it(monkeypatch, tmp_path):
    async with audited(monkeypatch, tmp_path, rings=3, liars={"a0"}) as (w, auditor, admin):
        await audits(w, auditor, 40)
        await w.until(lambda: admin.registry.setting("quarantined_nodes"))
        again = ClusterAdmin(NodeBook(), admin.registry, ClusterService(CARD, service_report))
        assert again.book.node("a0").quarantined and again.book.node("b0").quarantined == ""
        await admin.resume("a0", "k1")
        assert not w.book.nodes["a0"].quarantined and w.book.nodes["a0"].wants == "serve"
        third = ClusterAdmin(NodeBook(), admin.registry, ClusterService(CARD, service_report))
        assert third.book.quarantined == {}


async def test_with_two_rings_both_are_named_and_nobody_is_quarantined(monkeypatch, tmp_path):
    async with audited(monkeypatch, tmp_path, rings=2, liars={"b0"}) as (w, auditor, _):
        await audits(w, auditor, 5)
        assert auditor.counts["failed"] == 5 and not w.book.quarantined
        (told, *_) = [one for one in w.service.events.after(0) if one.kind == "audit_failed"]
        assert "a0" in told.text and "b0" in told.text and "third ring" in told.text


async def test_one_ring_alone_is_not_audited_and_the_operator_is_told(monkeypatch, tmp_path):
    async with audited(monkeypatch, tmp_path, rings=1) as (w, auditor, _):
        assert auditor.trouble == ""
        timeline = await answer(w)
        assert timeline.audited == "" and "one serves" in auditor.trouble


async def test_who_does_not_report_leaves_an_audit_unfinished(monkeypatch, tmp_path):
    monkeypatch.setattr(rerun_module, "REPORTS_WITHIN_S", 0.05)
    async with audited(monkeypatch, tmp_path, rings=2, silent={"a1"}) as (w, auditor, _):
        timeline = await answer(w)
        await w.until(lambda: timeline.audited == "unfinished")
        assert auditor.counts["unfinished"] == 1
        assert auditor.unfinished_by == {"too late": 2}, "it was tried once more"
        assert not w.book.quarantined


@pytest.mark.parametrize("size", [1, 2])
async def test_who_reports_all_but_its_sketch_is_found_with_two_rings(monkeypatch, tmp_path, size):
    monkeypatch.setattr(rerun_module, "REPORTS_WITHIN_S", 0.05)
    world_of = audited(monkeypatch, tmp_path, rings=2, mute={"b0"}, size=size)
    async with world_of as (w, auditor, _):
        await audits(w, auditor, 3)
        await w.until(lambda: w.book.quarantined)
        assert set(w.book.quarantined) == {"b0"}
        assert "reported nothing of what was audited" in w.book.quarantined["b0"]
        tries = auditor.unfinished_by["no report"]
        assert tries in (3, 4), "once is forgiven; another try may have begun"
        kinds = [one.kind for one in w.service.events.after(0)]
        assert (kinds.count("audit_failed"), kinds.count("node_quarantined")) == (tries, 1)
        assert len(list((tmp_path / "audits").iterdir())) == 1


async def test_who_reports_more_prompts_than_find_room_is_not_held_silent(monkeypatch, tmp_path):
    monkeypatch.setattr(rerun_module, "REPORTS_WITHIN_S", 0.05)
    monkeypatch.setattr(rerun_module, "SKETCHES_MAX", 0)
    async with audited(monkeypatch, tmp_path, rings=2, mute={"b0"}) as (w, auditor, _):
        await audits(w, auditor, 2)
        assert auditor.unfinished_by == {"ring ended": 4} and not w.book.quarantined


@pytest.mark.parametrize(
    ("planned", "element_bytes", "said", "used"),
    [
        ("float32", 2, "bfloat16", "float32"),
        ("bfloat16", 2, "float32", "float32"),
        ("auto", 4, "bfloat16", "float32"),
        ("auto", 2, "float16", "float16"),
        ("auto", 2, "float8", "bfloat16"),
    ],
)
def test_nobody_gets_more_tolerance_for_what_it_says(planned, element_bytes, said, used):
    device = PROFILE.devices[0].model_copy(update={"element_bytes": element_bytes})
    profile = PROFILE.model_copy(update={"devices": (device,)})
    stage = SimpleNamespace(
        work=replace(WORK, dtype=planned),
        loaded=SimpleNamespace(dtype=said, kv_dtype="int8"),
        node=SimpleNamespace(profile=profile),
    )
    assert rerun_module._dtype([stage]) == used
    assert rerun_module._kv_dtype([stage]) == "auto", "it was planned otherwise"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"num_hidden_layers": 9}, False),
        ({"num_experts": 128, "num_experts_per_tok": 8}, True),
        ({"text_config": {"n_routed_experts": 8}}, True),
        ({"num_experts": None}, False),
    ],
)
def test_experts_are_known_from_the_config(config, found, tmp_path):
    assert AuditSettings.of(0.5, tmp_path, config).has_experts is found


def ended(reason, audited="pending"):
    timeline = RequestTimeline("m", 4, 2)
    timeline.audited, timeline.finish_reason = audited, reason
    return timeline


async def test_only_whole_answers_of_some_length_wait_and_not_too_many():
    queue = AuditQueue(1.0, Random(0))
    for _ in range(WAITING_MAX + 3):
        queue.answered(ended("stop"), (1,) * AUDIT_TOKENS_MIN, 0, "")
    chosen = ended("stop", "")
    queue.choose(chosen, 2)
    assert chosen.audited == "", "nobody would come to it"
    for _ in range(WAITING_MAX):
        await queue.next()
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(queue.next())
        short = ended("stop")
        queue.answered(short, (1, 2), 0, "")
        assert short.audited == "unfinished"
        queue.answered(ended("stop", ""), (1,) * 9, 0, "")
        queue.answered(ended("length"), (1,) * 9, 3, "")
        assert (await waiting).ring == 3


@pytest.mark.parametrize(("reason", "told"), [("stop", "pending"), ("cancelled", "unfinished")])
def test_what_has_no_end_of_its_own_is_not_audited(reason, told):
    timeline = ended(reason)
    AuditQueue(1.0).closed(timeline)
    assert timeline.audited == told


def test_a_share_of_requests_is_chosen():
    queue = AuditQueue(0.25, Random(0))
    chosen = [ended("stop", "") for _ in range(1000)]
    for one in chosen:
        queue.choose(one, 2)
    assert 200 < sum(one.audited == "pending" for one in chosen) < 300
    assert not AuditQueue().is_alone


def test_evidence_is_bounded_and_private(tmp_path):
    evidence = Evidence(tmp_path / "audits")
    for at in range(EVIDENCE_MAX + 3):
        path = evidence.keep(1e9 + at, {"at": at})
    kept = sorted((tmp_path / "audits").iterdir())
    assert len(kept) == EVIDENCE_MAX and json.loads(kept[0].read_text()) == {"at": 3}
    assert str(kept[-1]) == path and kept[-1].stat().st_mode & 0o077 == 0
    (tmp_path / "file").write_text("")
    assert Evidence(tmp_path / "file").keep(1.0, {}) == ""
