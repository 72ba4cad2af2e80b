"""Files that people write, as they are read; and reports for scripts, as their keys.

The text is the value here, and what is read of it is what was recorded.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from molink.bench.report import report
from molink.bench.runner import RequestRecord
from molink.cli.members import _invite_fields, _node_fields
from molink.config.link_schedule import LinkSchedule
from molink.config.node_file import BYTES_PER_MBIT, read_node_file
from molink.control.registry.database import InviteRecord, NodeRecord
from molink.transport.relay.protocol import read_secret
from molink.workload.scenario_file import read_scenario
from molink.workload.trace import read_trace
from molink_scheduler.batch import BatchClass
from molink_sim.cli import main as sim_cli
from molink_sim.stage_profile import read_stage_profile
from molink_sim.workload import read_mooncake
from tests.config.test_node_file import LINK, MEASURED, NODE
from tests.golden.codec import Codec
from tests.sim.validation.conftest import SCENARIO, profile_data


def reading(read: Callable[[Path], Any]) -> Callable[[str], str]:
    def encode(content: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "golden.file"
            path.write_text(content, encoding="utf-8")
            path.chmod(0o600)
            return json.dumps(read(path))

    return encode


TRACES = Codec("read-traces", reading(lambda path: [asdict(one) for one in read_trace(path)]))
TRACES.add(
    own=lambda: "start_s,input_tokens,output_tokens\n0.5,10,20\n1.25,0,300000\n",
    azure=lambda: (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.9951690,396,109\r\n"
    ),
    with_a_mark_and_more_columns=lambda: (
        "\ufeffstart_s, input_tokens ,output_tokens,who\n0,1,2,anna\n"
    ),
)

MOONCAKE = Codec(
    "read-mooncake", reading(lambda path: [asdict(one) for one in read_mooncake(path, 1)])
)
MOONCAKE.add(
    synthetic=lambda: (
        '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n\n'
        '{"timestamp": 1500, "input_length": 1, "output_length": 0, "hash_ids": []}\n'
    ),
    conversation=lambda: "".join(
        json.dumps({"timestamp": at, "input_length": 10, "output_length": 2}) + "\n"
        for at in (0, 0, 0, 3000, 3000)
    ),
)


def nodes_of(path: Path) -> Any:
    """The links in Mbps and milliseconds, as the file has them."""
    file = read_node_file(path)
    links = [
        [*pair, link.rate_bytes_per_s / BYTES_PER_MBIT, 1e3 * link.one_way_s]
        for pair, link in file.network().links.items()
    ]
    return [[asdict(node) for node in file.nodes], links]


NODES = Codec("read-nodes", reading(nodes_of))
NODES.add(
    one=lambda: NODE,
    two_and_a_link=lambda: NODE + MEASURED + LINK + "one_way_ms = 3\nrate_mbps = 9\n",
)

LINKS = Codec("read-links", reading(lambda path: LinkSchedule.parse(str(path)).text))
LINKS.add(
    steps=lambda: "# a link\nt_s, mbps, one_way_ms\n0, 100, 30\n1.5, 0.5, 0\n",
    without_headers=lambda: "0,20,30\n",
)

SECRETS = Codec("read-relay-secret", reading(lambda path: read_secret(str(path)).decode()))
SECRETS.add(with_white_space=lambda: "\n" + "0123456789abcdef" * 4 + "\r\n")


def times_of(path: Path) -> Any:
    profile = read_stage_profile(path.rename(path.with_suffix(".json")))
    steps = [
        profile.cost(6, is_head, is_tail).step_s(kind, 8, 64, 1)
        for is_head in (False, True)
        for is_tail in (False, True)
        for kind in BatchClass
    ]
    pc = None if profile.pc is None else asdict(profile.pc)
    return [profile.model, profile.device, profile.layers, profile.model_layers, pc, steps]


def profile_of_before() -> str:
    data = profile_data()
    return json.dumps({key: data[key] for key in data if key not in ("pc", "model_layers")})


PROFILES = Codec("read-stage-profiles", reading(times_of))
PROFILES.add(
    with_everything=lambda: json.dumps(profile_data()),
    of_an_older_version=profile_of_before,
)


def scenario_in(path: Path) -> dict[str, Any]:
    """The codec under the key that the file has."""
    found = asdict(read_scenario(path))
    return {"wire" if key == "codec" else key: value for key, value in found.items()}


SCENARIOS = Codec("read-scenarios", reading(scenario_in))
SCENARIOS.add(shortest=lambda: SCENARIO)

# -- reports for scripts --------------------------------------------------------------------------


def keys_of(value: Any) -> Any:
    """Of objects their keys, of lists what their first element has, of all else the type."""
    match value:
        case dict():
            return {key: keys_of(one) for key, one in value.items()}
        case []:
            return []
        case [first, *_]:
            return [keys_of(first)]
        case bool() | str() | None:
            return type(value).__name__
        case _:
            return "number"


def simulated(words: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        nodes = Path(folder) / "nodes.toml"
        nodes.write_text(NODE + MEASURED.replace("lends_gib = 8", 'lends_gib = 8\ngpu = "rtx3060"'))
        command = [
            *(str(nodes) if word == "NODES" else word for word in words),
            "--json",
            str(path),
        ]
        result = CliRunner().invoke(sim_cli, command)
        assert result.exit_code == 0, result.output
        return json.dumps(keys_of(json.loads(path.read_text())))


SIMULATED = Codec("sim-json-keys", simulated)
SIMULATED.add(
    run=lambda: ["run", "--duration-s", "20", "--warmup-s", "0", "--drain-s", "60"],
    swarm=lambda: ["swarm", "--seeds", "1"],
    micro_batches=lambda: [
        *("micro-batches", "--users", "2", "--latency-ms", "5", "--slowdown", "1")
    ],
)

RECORDS = (
    RequestRecord(start_s=10.0, end_s=14.0, token_times_s=[11.0, 12.0, 13.5]),
    RequestRecord(start_s=11.0, end_s=11.5, error="later"),
)
BENCH = Codec("bench-json", lambda records: json.dumps(report(records)))
BENCH.add(of_some=lambda: RECORDS, of_none=tuple)


def listed(record: InviteRecord | NodeRecord) -> str:
    """As `molink invite list --json` and `molink node list --json` print it, times aside."""
    if isinstance(record, InviteRecord):
        fields = _invite_fields(record, 0.0)
    else:
        now = {"state": "serving", "layers": [0, 4], "device": "cpu", "reason": "", "x": 1}
        fields = _node_fields(record, {record.node_id: now})
    return json.dumps(fields | {name: "TIME" for name in TIMES if fields.get(name)})


TIMES = ("created", "expires", "joined", "removed")

LISTS = Codec("cli-lists", listed)
LISTS.add(
    invite=lambda: InviteRecord("0123456789abcdef", "party", 1.0, 2.0, 5, 4, None),
    node=lambda: NodeRecord("a" * 16, "attic", "k", "p", "t", 1.0, "i" * 16, None, "a" * 16),
    node_removed=lambda: NodeRecord("b" * 16, "attic", "k", "p", "t", 1.0, "i", 2.0, "a" * 16),
)

CODECS = (
    TRACES,
    MOONCAKE,
    NODES,
    LINKS,
    SECRETS,
    PROFILES,
    SCENARIOS,
    SIMULATED,
    BENCH,
    LISTS,
)
