"""What an operator types: understood, or refused with one sentence that says what to do."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.config.groups import ApiSettings
from molink.config.layer_split import even_split, parse_layers
from molink.config.link_schedule import LinkSchedule, LinkShape
from molink.config.setting import settings_of
from molink.config.settings import ServeSettings, UpSettings
from molink.errors import UserError
from molink_scheduler.units import GB


def test_a_link_is_rate_and_delay():
    shape = LinkShape.parse("20:30.5")
    assert (shape.rate_mbps, shape.one_way_ms) == (20.0, 30.5)
    assert shape.bytes_per_s == 2.5e6


@pytest.mark.parametrize(
    "text", ["", "100", "100:", ":30", "a:b", "0:30", "-5:30", "100:-1", "nan:3", "inf:3", "1:nan"]
)
def test_a_link_that_cannot_be_is_refused(text):
    with pytest.raises(UserError):
        LinkShape.parse(text)


def test_a_step_file_is_a_link_that_changes(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text("t_s, mbps, one_way_ms\n0, 20, 30\n# then\n20, 5, 30\n40, 20, 30\n")
    schedule = LinkSchedule.parse(str(file))
    assert [step.at_s for step in schedule.steps] == [0, 20, 40]
    assert schedule.step_at(19.9).rate_mbps == 20
    assert schedule.step_at(20).rate_mbps == 5
    assert LinkSchedule.from_text(schedule.text) == schedule


@pytest.mark.parametrize(
    "text", ["", "1, 20, 30", "0, 20", "0, x, 30", "0,20,30\n0,5,30", "0,20,30\nnan,5,30", "0,-1,3"]
)
def test_a_malformed_step_file_is_refused(tmp_path, text):
    file = tmp_path / "steps.csv"
    file.write_text(text)
    with pytest.raises(UserError):
        LinkSchedule.parse(str(file))


@given(st.integers(1, 200), st.integers(1, 64))
def test_an_even_split_covers_every_layer_once(layers, nodes):
    if nodes > layers:
        with pytest.raises(UserError, match=f"--nodes {layers}"):
            even_split(layers, nodes)
        return
    ranges = even_split(layers, nodes)
    assert [layer for a, b in ranges for layer in range(a, b)] == list(range(layers))
    lengths = [b - a for a, b in ranges]
    assert max(lengths) - min(lengths) <= 1


def test_layers_as_typed():
    assert parse_layers("0-4, 4-9,9-12", 12, 3) == [(0, 4), (4, 9), (9, 12)]


@pytest.mark.parametrize(
    ("text", "nodes", "ranges"),
    [
        ("0-3, 4-8,9-11", 3, [(0, 4), (4, 9), (9, 12)]),
        ("0-0,1-11", 2, [(0, 1), (1, 12)]),
        ("0-11", 1, [(0, 12)]),
        ("0-12", 1, [(0, 12)]),
    ],
)
def test_layers_as_people_count_them(text, nodes, ranges):
    assert parse_layers(text, 12, nodes) == ranges


@pytest.mark.parametrize(
    "text, says",
    [
        ("0-4,6-12", "gap"),
        ("0-4,5-12", "end at 11"),
        ("0-5,4-12", "overlap"),
        ("0-4,4-8", "end at 11"),
        ("0-4,4-13", "end at 11"),
        ("0-12", "2 nodes"),
        ("0-4,4-8,8-12", "2 nodes"),
        ("0-4,4-4", "4-4"),
        ("a-4,4-12", "a-4"),
        ("0-4,", "ranges like"),
        ("1-4,4-12", "gap"),
    ],
)
def test_layers_that_do_not_fit_are_refused(text, says):
    with pytest.raises(UserError, match=says):
        parse_layers(text, 12, 2)


def serve_settings(*, nodes=1, **options) -> ServeSettings:
    return settings_of(ServeSettings, model="no such model", nodes=nodes, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": 0},
        {"nodes": 65},
        {"standbys": 65},
        {"port": 70000},
        {"threads": 0},
        {"model_len_max": 1},
        {"kv_tokens": 3},
        {"cache_ram_bytes": -1},
        {"cache_disk_bytes": 65_537 * GB},
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"ttft_target_s": 0.0},
        {"ttft_target_s": float("nan")},
        {"tpot_target_ms": -5.0},
        {"tpot_target_ms": 0.0},
        {"tpot_target_ms": float("nan")},
        {"tbt_target_ms": 0.0},
        {"tbt_target_ms": float("nan")},
        {"tbt_percentile": 100.0},
    ],
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(UserError, match="must be"):
        serve_settings(**options)


@pytest.mark.parametrize(
    "layers, says",
    [("abc", "ranges like"), ("0-4", "1 ranges for 2 nodes"), ("0-4,6-9", "gap"), ("", "ranges")],
)
def test_malformed_layers_are_refused_before_the_model_is_opened(layers, says):
    with pytest.raises(UserError, match=says):
        serve_settings(nodes=2, layers=layers)


def test_kv_is_not_apart_from_its_weights_and_lent_too():
    with pytest.raises(UserError, match="leave one of them out"):
        serve_settings(attention_device="host", kv_host_tokens=4096)


def test_kv_apart_from_its_weights_lies_on_a_device():
    with pytest.raises(UserError, match="must be host or cuda:N, got 'moon'"):
        serve_settings(attention_device="moon")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_settings_that_only_the_model_can_refuse_pass(device):
    settings = serve_settings(nodes=2, layers="0-4,4-1000", device=device)
    assert (settings.layers, settings.device) == ("0-4,4-1000", device)


def up_settings(**options) -> UpSettings:
    return settings_of(UpSettings, model="demo", data_dir=Path("unused"), **options)


@pytest.mark.parametrize(("target_s", "in_order"), [(None, False), (3.0, True)])
@pytest.mark.parametrize("settings", [serve_settings, up_settings])
def test_prompts_are_computed_as_they_come_where_a_time_is_promised(settings, target_s, in_order):
    chosen = settings(ttft_target_s=target_s)
    assert chosen.ring.terms(chosen.api).fifo_prompts is in_order


def test_a_setting_that_nobody_knows_is_a_mistake():
    with pytest.raises(TypeError, match="UpSettings has no cache_ram_bytes"):
        up_settings(cache_ram_bytes=1)


def test_a_cap_on_weights_is_kept_in_bytes():
    assert up_settings(weights_mbps=8.0).weights_bytes_per_s == 1e6
    assert up_settings().weights_bytes_per_s is None


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--port", {"port": 65536}),
        ("--broker-port", {"broker_port": -1}),
        ("--relay-port", {"relay_port": 70000}),
        ("--tls-key", {"tls_cert": "cert.pem"}),
        ("--min-nodes", {"min_nodes": 0}),
        ("--max-model-len", {"model_len_max": 1}),
        ("--context-tokens", {"context_tokens": 1}),
        ("--wire", {"codec": "zip"}),
        ("--tpot-ms", {"tpot_ms": float("nan")}),
        ("--weights-mbps", {"weights_mbps": 0.0}),
        ("--weights-mbps", {"weights_mbps": float("inf")}),
        ("--audit-share", {"audit_share": 1.01}),
        ("--audit-share", {"audit_share": float("nan")}),
        ("--replaces", {"replaces": "old", "broker": "mqtts://home:8883"}),
        ("--replaces", {"replaces": "old", "relay": "home:1", "relay_secret_file": "secret"}),
    ],
)
def test_what_cannot_be_is_refused_by_name(option, values):
    with pytest.raises(UserError, match=option):
        up_settings(**values)


@pytest.mark.parametrize("drafter", ["none", "auto", "copy", "tail"])
def test_a_ring_without_a_drafter_is_told_of_no_width(drafter):
    for settings_with in (serve_settings, up_settings):
        settings = settings_with(drafter=drafter, draft_width_max=5)
        terms = settings.ring.terms(settings.api)
        assert terms.draft_width_max == (0 if drafter == "none" else 5)
        assert not terms.draft_width_fixed


@pytest.mark.parametrize("width", [-1, 0, 17, 1000])
def test_a_width_that_no_span_has_is_refused(width):
    with pytest.raises(UserError, match="--draft-width-max must be 1 to 16"):
        serve_settings(draft_width_max=width)


def test_agents_may_draft_with_a_small_model():
    ring = up_settings(drafter="/models/small", draft_width_max=3).ring
    assert (ring.drafter, ring.terms(ApiSettings()).draft_width_max) == ("/models/small", 3)
