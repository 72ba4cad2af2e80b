"""What Prometheus reads: the figures of GET /cluster, requests that ended, bounded labels."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from molink.api.metrics.cluster_metrics import ClusterCollector, NodeLabels
from molink.api.metrics.route import Metrics
from molink.errors import OverloadedError, RingError
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.answers.deadline import DEADLINE
from molink_scheduler.routing.admission import NO_TARGETS, Targets
from tests.api.conftest import FakeService
from tests.api.metrics.examples import (
    PAIR,
    ObservedService,
    answered,
    ended_with,
    link,
    node,
    observed_service,
    ring,
    scraped,
    stage,
    timeline,
)

SHARED = {
    "gen_ai_operation_name": "chat",
    "gen_ai_provider_name": "molink",
    "gen_ai_request_model": "demo",
}


def values(text):
    """Of each sample, by its name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[(name, *sorted(labels.items()))]


def test_a_scrape_shows_stages_links_and_nodes_in_base_units():
    found = values(scraped(Metrics(observed_service())))
    assert value(found, "molink_stage_busy_ratio", node="anna") == 0.5
    assert value(found, "molink_stage_busy_seconds_total", node="ben") == 10.0
    link_ = {"source": "anna", "target": "ben"}
    assert value(found, "molink_link_rate_bytes_per_second", **link_) == 2.5e6
    assert value(found, "molink_link_rtt_seconds", **link_) == pytest.approx(0.06)
    assert value(found, "molink_link_codec_saved_bytes", **link_) == -50
    assert value(found, "molink_node_token_layers_total", node="carl") == 900
    assert value(found, "molink_nodes", state="standby") == 1
    ends = "molink_certificate_expiry_timestamp_seconds"
    assert value(found, ends, certificate="api") == 2e9
    assert value(found, "molink_invites_open") == 2
    assert value(found, "molink_invite_expiry_timestamp_seconds") == 1.9e9
    assert value(found, "molink_nodes", state="lost") == 0
    assert value(found, "molink_requests", state="running") == 2
    assert (value(found, "molink_ready"), value(found, "molink_rings")) == (1, 1)
    assert value(found, "molink_build_info", version="0.1.0+g1a2b3c4", protocol="8") == 1


def test_a_scrape_shows_each_tier_of_the_prefix_cache():
    found = values(scraped(Metrics(observed_service())))
    for tier, tokens in (("device", 48), ("host", 160), ("file", 320)):
        assert value(found, "molink_prefix_cache_tokens", tier=tier) == tokens
    for outcome, tokens in (("fetched", 64), ("lost", 16)):
        name = "molink_prefix_cache_fetched_tokens_total"
        assert value(found, name, outcome=outcome) == tokens


def drafter(name, rounds, acceptance):
    figures = {"acceptance": acceptance, "width": 3.5, "tokens_per_round": 2.75}
    return {"name": name, "rounds": rounds} | figures


def test_a_scrape_shows_each_drafter_of_the_ring_that_it_guesses_most_for():
    service = observed_service()
    one, other = ring("anna", "ben"), ring("carl")
    one["drafters"] = [drafter("copy", 3, 0.5), drafter("small", 9, 0.75)]
    other["drafters"] = [drafter("copy", 4, None)]
    service.report["rings"] = [one, other]
    found = values(scraped(Metrics(service)))
    assert value(found, "molink_draft_acceptance", drafter="small") == 0.75
    assert value(found, "molink_draft_acceptance", drafter="copy") == 0.0, "nothing was tried"
    assert value(found, "molink_draft_width", drafter="small") == 3.5
    assert value(found, "molink_draft_tokens_per_round", drafter="copy") == 2.75


def test_a_ring_that_drafts_nothing_has_no_metrics_of_drafts():
    found = values(scraped(Metrics(observed_service())))
    assert not [name for name, *_ in found if name.startswith("molink_draft")]


def test_a_scrape_shows_both_ends_of_a_hand_over():
    service = observed_service()
    one, other, alone = ring("anna"), ring("carl"), ring("ben")
    other["stages"][0]["pair"] = PAIR | {"sends": False, "lost": 3}
    alone["stages"][0]["pair"] = None
    service.report["rings"] = [one, other, alone]
    found = values(scraped(Metrics(service)))
    assert value(found, "molink_handover_bytes_total", node="anna", end="sent") == 4000
    assert value(found, "molink_handover_used_blocks_total", node="carl", end="taken") == 38
    assert value(found, "molink_handover_lost_blocks_total", node="carl", end="taken") == 3
    assert value(found, "molink_handover_held_byte_seconds_total", node="anna", end="sent") == 12.5
    assert not [labels for name, *labels in found if "handover" in name and "ben" in str(labels)]


def test_a_ring_without_a_prefix_cache_has_nothing_cached():
    service = observed_service()
    service.report["rings"][0]["prefix_cache"] = None
    found = values(scraped(Metrics(service)))
    assert value(found, "molink_prefix_cache_tokens", tier="device") == 0


def test_a_ring_without_lower_tiers_shows_none():
    service = observed_service()
    service.report["rings"][0]["prefix_cache"]["tiers"] = None
    found = values(scraped(Metrics(service)))
    assert value(found, "molink_prefix_cache_tokens", tier="device") == 48
    assert not [one for one in found if one[0] == "molink_prefix_cache_fetched_tokens_total"]
    assert [one for one in found if one[0] == "molink_prefix_cache_tokens"] == [
        ("molink_prefix_cache_tokens", ("tier", "device"))
    ]


def test_a_cluster_without_rings_is_not_ready():
    service = ObservedService({"stages": [], "rings": [], "unready_reason": "No PC has joined."})
    found = values(scraped(Metrics(service)))
    assert (value(found, "molink_ready"), value(found, "molink_rings")) == (0, 0)


def test_what_a_stage_has_not_reported_is_left_out():
    lone = {"stages": [stage("anna", decode_step_s=None)], "links": []}
    collector = ClusterCollector(from_plain(ClusterReport, {"rings": [lone]}))
    families = {family.name: family.samples for family in collector.collect()}
    assert families["molink_stage_decode_step_seconds"] == []
    assert len(families["molink_stage_busy_ratio"]) == 1


def test_a_request_is_observed_when_it_has_ended():
    service = observed_service()
    metrics = Metrics(service)
    answered(service.request_log, moves=2)
    found = values(scraped(metrics))
    for name, seconds in (
        ("gen_ai_server_time_to_first_token_seconds", 3.0),
        ("gen_ai_server_time_per_output_token_seconds", 1.0),
    ):
        assert value(found, f"{name}_sum", **SHARED) == seconds
        assert value(found, f"{name}_count", **SHARED) == 1
    duration = "gen_ai_server_request_duration_seconds_sum"
    assert value(found, duration, **SHARED, error_type="") == 5.0
    assert value(found, "molink_request_queue_seconds_sum") == 1.0
    assert value(found, "molink_request_prefill_seconds_sum") == 2.0
    tokens = "gen_ai_client_token_usage_sum"
    assert value(found, tokens, **SHARED, gen_ai_token_type="input") == 100
    assert value(found, tokens, **SHARED, gen_ai_token_type="output") == 3
    assert value(found, "molink_requests_ended_total", finish_reason="stop") == 1
    assert value(found, "molink_request_moves_total") == 2


def test_what_was_forecast_is_summed_beside_what_came():
    service = observed_service()
    metrics = Metrics(service)
    answered(service.request_log, forecast_ttft_s=2.5)
    answered(service.request_log)  # Nobody forecast anything to this one.
    found = values(scraped(metrics))
    sums = [value(found, "molink_first_token_seconds_total", what=w) for w in ("forecast", "came")]
    assert sums == [2.5, 3.0]


def test_requests_with_targets_are_counted_by_whether_they_were_kept():
    service = observed_service()
    metrics = Metrics(service)
    for targets in (Targets(ttft_s=4.0), Targets(ttft_s=2.0), Targets(tbt_s=0.5), NO_TARGETS):
        answered(service.request_log, targets=targets)
    found = values(scraped(metrics))
    counts = {"met": 1, "ttft_missed": 1, "tbt_missed": 1, "tpot_missed": 0, "refused": 0}
    for outcome, count in counts.items():
        assert value(found, "molink_goodput_total", outcome=outcome) == count
    assert value(found, "molink_request_tbt_seconds_count") == 4
    assert value(found, "molink_request_tbt_seconds_sum") == pytest.approx(4.0, rel=0.05)


def test_requests_that_fail_or_are_left_are_told_apart():
    service = observed_service()
    metrics = Metrics(service)
    ended_with(service.request_log, RingError("No ring."))
    ended_with(service.request_log, OverloadedError("Too many wait."))
    ended_with(service.request_log, asyncio.CancelledError())
    found = values(scraped(metrics))
    for reason in ("error", "overloaded", "cancelled"):
        assert value(found, "molink_requests_ended_total", finish_reason=reason) == 1
        duration = "gen_ai_server_request_duration_seconds_count"
        assert value(found, duration, **SHARED, error_type=reason) == 1
    assert ("gen_ai_client_token_usage_count", *sorted(SHARED.items())) not in found


def test_answers_that_their_deadline_has_ended_are_counted():
    service = observed_service()
    metrics = Metrics(service)
    late = timeline()
    with service.request_log.following(late):
        late.finished(DEADLINE, late.arrival.at + 1.0)
    found = values(scraped(metrics))
    assert value(found, "molink_requests_ended_total", finish_reason="deadline") == 1


def test_tokens_of_requests_under_way_count_and_are_not_counted_again():
    service = observed_service()
    metrics, live = Metrics(service), timeline()
    with service.request_log.following(live):
        live.submitted(0, (), 1.0)
        live.tokens_came(5, 2.0)
        answered(service.request_log)
        found = values(scraped(metrics))
        assert value(found, "molink_tokens_generated_total") == 8
        assert value(found, "molink_requests_live") == 1
        live.finished("stop", 2.0)
    found = values(scraped(metrics))
    assert value(found, "molink_tokens_generated_total") == 8
    assert value(found, "molink_requests_live") == 0


def test_events_are_counted_by_kind():
    service = observed_service()
    service.events.add("node_lost", "anna is gone", node="anna")
    found = values(scraped(Metrics(service)))
    assert value(found, "molink_events_total", kind="node_lost") == 1
    assert value(found, "molink_events_total", kind="ring_ended") == 0


def test_names_of_nodes_beyond_the_limit_are_added_up():
    labels = NodeLabels(names_max=1)
    rings = [ring("anna", "ben"), ring("carl", "dora")]
    collector = ClusterCollector(from_plain(ClusterReport, {"rings": rings}), labels)
    families = {family.name: family for family in collector.collect()}
    steps = {tuple(s.labels.values()): s.value for s in families["molink_stage_steps"].samples}
    assert steps == {("anna",): 7, ("other",): 21}
    busy = families["molink_stage_busy_ratio"].samples
    assert [one.value for one in busy] == [0.5, 0.5], "shares are not added up"


def test_two_nodes_of_one_name_make_one_series():
    twice = {"stages": [stage("anna"), stage("anna", busy_share=0.75)], "links": []}
    report = {"rings": [twice], "nodes": [node("anna"), node("anna")], "unready_reason": None}
    found = values(scraped(Metrics(ObservedService(report))))
    assert value(found, "molink_stage_steps_total", node="anna") == 14
    assert value(found, "molink_stage_busy_ratio", node="anna") == 0.75
    assert value(found, "molink_node_served_seconds_total", node="anna") == 120


def test_names_are_printable_and_bytes_saved_stay_negative():
    told = {"rings": [{"stages": [stage("a")], "links": [link("x", "y")]}]}
    report = from_plain(ClusterReport, told)
    (one,) = report.rings
    nasty = replace(one.stages[0], node='a"\n\x1b[2J\\b')
    report = replace(report, rings=(replace(one, stages=(nasty,)),))
    text = scraped(Metrics(ObservedService(report)))
    assert "\x1b" not in text
    found = values(text)
    assert value(found, "molink_link_codec_saved_bytes", source="x", target="y") == -50


async def test_the_endpoint_answers_in_the_format_that_is_asked_for(serve, http):
    url = await serve(FakeService())
    async with http.post(f"{url}/generate", json={"prompt": "ab", "max_tokens": 3}) as response:
        assert response.status == 200
    for accept, kind, end in (
        ("text/plain", "text/plain; version=", ""),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", "# EOF\n"),
    ):
        async with http.get(f"{url}/metrics", headers={"Accept": accept}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith(kind)
            text = await response.text()
        assert 'molink_requests_ended_total{finish_reason="length"} 1' in text
        assert text.endswith(end)
