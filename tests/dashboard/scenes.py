"""Answers of a coordinator, as JSON, and histories made of them."""

from molink.dashboard.model.history import History
from molink.dashboard.model.observation import Observation

NAMES = ("anna", "ben", "carl")
START_S = 1_800_000_000.0
"""2027-01-15 08:00:00 UTC."""


def stage(name, first, step_s=0.012, busy=0.4, **more):
    return {
        "node": name,
        "pid": 7,
        "layers": [first, first + 8],
        "device": "cpu",
        "dtype": "float32",
        "weights_bytes": 10**8,
        "kv_tokens_capacity": 1000,
        "kv_tokens_used": 120,
        "busy_s": 1.0,
        "busy_share": busy,
        "steps": 500,
        "decode_step_s": step_s,
        "prefill_row_s": 1e-4,
        "decode_round_s": 0.06 if first == 0 else None,
        "micro_batch_count": 3 if first == 0 else None,
        "frames_refused": 0,
    } | more


def link(source, target, **more):
    return {
        "from": source,
        "to": target,
        "messages_sent": 5,
        "bytes_sent": 1000,
        "decode_waiting": 0,
        "prefill_waiting": 0,
        "decode_queued_bytes": 0,
        "prefill_queued_bytes": 0,
        "chunk_bytes": 4096,
        "rate_mbps": 40.0,
        "rtt_ms": 30.0,
        "queueing_delay_ms": 0.0,
        "in_flight_bytes": 0,
        "foreign_upload": False,
        "acks_refused": 0,
        "emulated": None,
    } | more


def node(name, first=None, **more):
    return {
        "id": name[0] * 16,
        "name": name,
        "pc": name[0] * 16,
        "state": "serving" if first is not None else "standby",
        "reason": "" if first is not None else "It would slow everybody down.",
        "drained": False,
        "quarantined": False,
        "ring": 1 if first is not None else None,
        "layers": [first, first + 8] if first is not None else None,
        "loaded": None,
        "device": "cpu",
        "memory": {"lent_bytes": 4 * 2**30, "total_bytes": 8 * 2**30},
        "paths": {"next": "direct"},
        "profile": {
            "cpu_threads": 4,
            "upload_mbps": 40.0,
            "download_mbps": 100.0,
            "upload_cap_mbps": None,
            "coordinator_rtt_ms": 20.0,
            "nat": "unknown",
            "clock_offset_s": 0.0,
            "steps": {
                "model": "demo",
                "decode_fixed_s": 0.0015,
                "decode_row_s": 0.0,
                "prefill_row_s": 1e-4,
                "head_row_s": 0.0,
            },
        },
        "contribution": {"uptime_s": 7500, "token_layers": 12000, "bytes_sent": 5 * 10**6},
        "doubts": [],
    } | more


def cluster(stages=None, links=None, nodes=None, **more):
    """Of three stages in one ring, and one node that stands by."""
    names = NAMES
    stages = stages or [stage(name, 8 * at) for at, name in enumerate(names)]
    ends = [("coordinator", "anna"), ("anna", "ben"), ("ben", "carl"), ("carl", "anna")]
    ring = {
        "model": "demo",
        "epoch": 5,
        "stages": stages,
        "links": links or [link(*one) for one in (*ends, ("carl", "coordinator"))],
        "requests": {"running": 2, "waiting": 1},
        "wire": {"codec": "lossless", "reason": "it saves time", "check_passed": None},
        "ring": 1,
        "forecast": {
            "users": 4,
            "tpot_s": 0.05,
            "tpot_alone_s": 0.04,
            "ttft_s": 0.5,
            "tokens_per_s": 40.0,
            "bottleneck": "ben",
        },
    }
    nodes = nodes or [*(node(name, 8 * at) for at, name in enumerate(names)), node("dora")]
    body = {"model": "demo", "stages": stages, "links": ring["links"], "rings": [ring]}
    return body | {"unready_reason": None, "nodes": nodes, "trouble": []} | more


def timeline(number, tokens=10, **more):
    return {
        "id": f"{number:024x}",
        "choice": 0,
        "model": "demo",
        "key_id": "k1",
        "state": "decode",
        "received_unix_s": START_S,
        "age_s": 2.0,
        "prompt_tokens": 100,
        "prompt_tokens_done": 100,
        "answer_tokens_max": 128,
        "tokens": tokens,
        "queue_s": 0.1,
        "prefill_s": 0.4,
        "decode_s": 0.05 * max(0, tokens - 1),
        "tpot_s": 0.05 if tokens > 1 else None,
        "total_s": 2.0,
        "finish_reason": None,
        "error": "",
        "attempts": [attempt()],
    } | more


def attempt(ring=1, **more):
    return {
        "ring": ring,
        "stages": [{"node": name, "layers": [8 * at, 8 * at + 8]} for at, name in enumerate(NAMES)],
        "submitted_s": 0.05,
        "started_s": 0.1,
        "first_token_s": 0.5,
        "ended_s": None,
        "tokens": 10,
        "moved_because": "",
    } | more


def event(seq, kind="join", name="anna", text="anna has joined"):
    return {
        "seq": seq,
        "unix_s": START_S + seq,
        "kind": kind,
        "node": name,
        "ring": 1,
        "text": text,
    }


def look(at, body=None, requests=(), events=(), trouble=""):
    """The observation number `at`, two a second."""
    return Observation(
        START_S + at / 2,
        {} if trouble else (body or cluster()),
        tuple(requests),
        tuple(events),
        trouble,
    )


def history_of(*looks):
    history = History()
    for one in looks:
        history.take(one)
    return history


def steady(count=20):
    """A ring on which two requests get ten tokens a second each."""
    return [look(at, requests=[timeline(1, 5 * at), timeline(2, 5 * at)]) for at in range(count)]


def slowed(step_s=0.036, count=11):
    """What follows when ben has become slower."""
    stages = [stage("anna", 0), stage("ben", 8, step_s, 0.99), stage("carl", 16)]
    body = cluster(stages=stages)
    return [
        look(at, body, [timeline(1, 5 * at), timeline(2, 5 * at)]) for at in range(20, 20 + count)
    ]
