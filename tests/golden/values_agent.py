"""An agent's files, its socket for the owner, what it is joined with, what Windows is told."""

import asyncio
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

from aiohttp import web
from click.testing import CliRunner

from molink.agents_api.app import add_join_route
from molink.api.server import start_api
from molink.control.addresses import BrokerAddress, Credentials, ServerTrust
from molink.control.certificate import own_certificate
from molink.control.messages.invites import Invite
from molink.control.messages.payloads import Device, Profile, StageFact, StepCost
from molink.control.private_file import write_private
from molink.control.registry.registry import Registry
from molink.coordinator.services import JoinService
from molink.errors import UserError
from molink_agent.cli import main as agent_cli
from molink_agent.daemon import step_times
from molink_agent.daemon.measuring_budget import TIMING_BUDGET, MeasuringBudget
from molink_agent.daemon.membership import Membership, join_cluster, join_device, load_membership
from molink_agent.daemon.status import status_of
from molink_agent.daemon.step_times import KeptStepTimes
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.data_files import AgentOptions, Known
from molink_agent.doctor.facts import fail, ok, skip, warn
from molink_agent.doctor.report import as_json
from molink_agent.limits.assignment_check import Loan
from molink_agent.limits.hours import LendingHours
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.local_socket import SOCKET_NAME, answering
from molink_agent.service.unit import unit_name, unit_text
from molink_agent.windows.logon_task import LogonTask
from molink_agent.windows.wslconfig import with_mirrored, without_ours
from tests.agent.daemon.agents import agent_with
from tests.golden.codec import Codec
from tests.golden.fixed_random import fixed_random, numbered
from tests.golden.values_control import SIZE
from tests.golden.values_joining import (
    COORDINATOR_PAIR,
    COORDINATOR_SECRET,
    COORDINATOR_SETTING,
    PAIR,
    answer_shortest,
    answer_with_everything,
)
from tests.golden.values_rings import HEALTH
from tests.golden.values_told import PAYLOADS


def in_folder(write, name: str):
    """An encoder by what `write(value, folder)` leaves in the file `name`."""

    def encode(value) -> str:
        with tempfile.TemporaryDirectory() as folder:
            write(value, Path(folder))
            return (Path(folder) / name).read_text(encoding="utf-8")

    return encode


def from_folder(read, name: str):
    """A decoder by what `read(folder)` finds in the file `name`."""

    def decode(content: str):
        with tempfile.TemporaryDirectory() as folder:
            write_private(Path(folder) / name, content)
            return read(Path(folder))

    return decode


# -- files ----------------------------------------------------------------------------------------

LIMITS = Codec(
    "agent-limits-file",
    in_folder(lambda limits, folder: LimitsFile(folder).write(limits), "limits.toml"),
    from_folder(lambda folder: LimitsFile(folder).read(), "limits.toml"),
)
LIMITS.add(
    nothing_set=OwnerLimits,
    everything_set=lambda: OwnerLimits(
        vram_bytes=6_500_000_000,
        memory_bytes=8_000_000_000,
        upload_mbps=100_000.0,
        disk_bytes=0,
        hours=(
            LendingHours.parse("mon-fri 18:00-02:00"),
            LendingHours.parse("Sat  00:00-24:00"),
        ),
        only_when_idle_minutes=10.0,
        pause_on_battery=False,
        pause_on_game=False,
        threads=1024,
        device="cuda:0,cpu,cpu",
        direct=False,
    ),
)

OPTIONS = Codec(
    "agent-options-file",
    in_folder(lambda options, folder: options.save(folder), "options.json"),
    from_folder(AgentOptions.load, "options.json"),
)
OPTIONS.add(usual=AgentOptions, all_others=lambda: AgentOptions(65_472, "192.168.1.20", False))

KNOWN = Codec(
    "agent-known-file",
    in_folder(lambda known, folder: known.save(folder), "known.json"),
    from_folder(Known.load, "known.json"),
)
KNOWN.add(
    nothing=Known,
    everything=lambda: Known(
        broker_host="broker.example.org",
        broker_port=65_535,
        coordinator_url="https://10.0.0.1:8003",
        stun_port=3478,
        data_port=7000,
        model=SIZE,
        profile=PAYLOADS.builders["profile_with_everything"]()[1],
    ),
)

ORDER = PAYLOADS.builders["probe_of_everything"]()[1]
TIMES = {"decode_fixed_s": 0.00125, "decode_row_s": 1e-05, "prefill_row_s": 0.0001}


LOAN, BUDGET = Loan("cuda:0", threads=8), MeasuringBudget(TIMING_BUDGET, lambda: 0.0)


def keep_times(times, folder: Path) -> None:
    """As the process that measures has told them."""

    async def measured(order, loan):
        return step_times._times(json.dumps(times).encode(), b"")

    before, step_times._layer_times = step_times._layer_times, measured
    try:
        asyncio.run(KeptStepTimes(folder).of(ORDER, LOAN, BUDGET))
    finally:
        step_times._layer_times = before


def kept_times(folder: Path):
    cost = asyncio.run(KeptStepTimes(folder).of(ORDER, LOAN, BUDGET))
    assert isinstance(cost, StepCost)
    return cost.model_dump(include=set(TIMES))


STEP_TIMES = Codec(
    "agent-steps-file",
    in_folder(keep_times, "steps.json"),
    from_folder(kept_times, "steps.json"),
)
STEP_TIMES.add(of_one_device=lambda: TIMES)


def this_pc(folder: Path) -> ThisPc:
    return ThisPc(folder, LimitsFile(folder), gpus=None, measured=None)  # type: ignore[arg-type]


STARTED = Codec(
    "agent-started-file",
    in_folder(lambda now, folder: this_pc(folder).next_start(now), "started"),
    from_folder(lambda folder: this_pc(folder).next_start(0.0) - 1.0, "started"),
)
STARTED.add(once=lambda: 1_700_000_000.125)

# -- joining, as both sides do it -----------------------------------------------------------------


@dataclass
class BrokerDouble:
    address: BrokerAddress

    @property
    def trust(self) -> ServerTrust | None:
        return self.address.tls

    async def allow(self, username: str, password: str) -> Credentials:
        return Credentials(username, password)


@dataclass(frozen=True)
class Joining:
    broker: BrokerAddress
    further: bool = False
    """Whether it is a further device of the PC that joins."""


async def joined(joining: Joining, folder: Path) -> None:
    registry = Registry.open(folder / "coordinator")
    registry.set_setting(COORDINATOR_SETTING, COORDINATOR_SECRET)
    tls = own_certificate(folder / "coordinator")
    broker = BrokerDouble(joining.broker)
    desk = JoinService(registry, broker, "broker.example.org", tls.trust, SIZE)
    app = web.Application()
    add_join_route(app, desk)
    runner = await start_api(app, "127.0.0.1", 0, tls.server_context())
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        with fixed_random():
            made = registry.make_invite(3600.0, 1, "", 2e9, url)
            invite = Invite(url, made.invite_id, made.secret, COORDINATOR_PAIR.public)
            pc = await join_cluster(invite, PAIR, "Annas PC – Küche", folder)
            if joining.further:
                await join_device(pc, PAIR, PAIR.for_device(1), "Annas PC – Küche (2)", folder)
    finally:
        await runner.cleanup()
        registry.close()


def membership_file(joining: Joining) -> str:
    """But for the port, and for what a clock says or was drawn."""
    written = in_folder(lambda one, folder: asyncio.run(joined(one, folder)), "membership.json")
    text = re.sub(r'(time_unix_s|clock_offset_s)": [-0-9.e]+', r'\1": 0.0', written(joining))
    text = numbered(text, r'(?<=")[A-Za-z0-9_-]{32}(?=")')
    text = re.sub(r"-----BEGIN.*?END CERTIFICATE-----", "PEM", text)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8003", text)


JOININGS = Codec("agent-joining", membership_file)
JOININGS.add(
    of_a_pc=lambda: Joining(BrokerAddress("127.0.0.1", 1883)),
    of_a_further_device=lambda: Joining(
        BrokerAddress("x", 8883, ServerTrust(authority="PEM\n")), further=True
    ),
)


def kept_membership(membership: Membership) -> str:
    return membership.model_dump_json(indent=1) + "\n"


MEMBERSHIPS = Codec(
    "agent-membership-file", kept_membership, from_folder(load_membership, "membership.json")
)
MEMBERSHIPS.add(
    shortest=lambda: Membership(
        url="https://10.0.0.1:8003", name="x", answer=answer_shortest(), clock_offset_s=0
    ),
    with_everything=lambda: Membership(
        url="https://ring.example.org/a",
        name="Annas PC – Küche",
        answer=answer_with_everything(),
        clock_offset_s=-7200.5,
    ),
)

# -- the socket for the owner ---------------------------------------------------------------------


def status(devices: int) -> str:
    """Of an agent as it stands, without asking this machine anything."""
    with tempfile.TemporaryDirectory() as folder:
        agent, _ = agent_with(Path(folder))
        node = agent.first
        if devices:
            profile: Profile = PAYLOADS.builders["profile_with_everything"]()[1]
            node.reports.stage.device = "cuda:0"
            node.reports.profile = profile
            node.stage.assignment = PAYLOADS.builders["assignment_to_join_as_the_tail"]()[1]
            revision = node.stage.assignment.revision
            node.session.fact = StageFact(revision=revision, kind="loading", fraction=0.5)
            node.stage.handle = SimpleNamespace(health=HEALTH, loaded=None)
            node.stage.routes = SimpleNamespace(paths={"next": "direct"})
            cpu = Device(kind="cpu", name="cpu", memory_bytes=2**33, free_bytes=2**32)
            agent._add_node()
            agent.nodes[1].reports.profile = profile.model_copy(update={"devices": (cpu,)})
        shown = status_of(agent)
    return json.dumps(shown, indent=0)


STATUS = Codec("agent-status", status)
STATUS.add(at_first=lambda: 0, while_it_loads=lambda: 1)

ANSWER = {"connected": False, "cluster": "", "devices": [{"id": "a", "layers": None}]}


def asked(words: list[str]) -> str:
    """The lines that a command of the owner's sends to the agent."""
    lines = []

    async def answer(reader, writer):
        line = await reader.readline()
        lines.append(line.decode())
        writer.write(json.dumps(ANSWER).encode() + b"\n")
        writer.close()

    async def ask(folder: Path) -> None:
        (folder / "membership.json").touch(mode=0o600)
        server = await asyncio.start_unix_server(answer, folder / SOCKET_NAME)
        command = [*words, "--data-dir", str(folder)]
        result = await asyncio.to_thread(CliRunner().invoke, agent_cli, command)
        assert result.exit_code == 0, result.output
        server.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ask(Path(folder)))
    return "".join(line for line in lines if line)


QUESTIONS = Codec("agent-socket-questions", asked)
QUESTIONS.add(
    status=lambda: ["status", "--json"],
    pause=lambda: ["pause", "--json"],
    resume=lambda: ["resume", "--json"],
    drain=lambda: ["drain"],
    leave=lambda: ["leave"],
    set_limit=lambda: ["set", "threads", "4"],
)


def answered(question: str) -> str:
    """The line that comes back for one."""

    async def answer(asked):
        if asked["command"] == "status":
            return {"name": "Annas PC – Küche", "devices": []}
        raise UserError("The agent is of another version: restart it.")

    async def ask(path: Path) -> str:
        async with answering(path, answer):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(question.encode() + b"\n")
            line = await reader.readline()
            writer.close()
            return line.decode()

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(ask(Path(folder) / SOCKET_NAME))


ANSWERS = Codec("agent-socket-answers", answered)
ANSWERS.add(
    to_status=lambda: '{"command": "status"}',
    to_something_else=lambda: '{"command": "dance"}',
    to_no_object=lambda: "[]",
)

FINDINGS = Codec("agent-doctor-json", lambda findings: json.dumps(as_json(findings), indent=2))
FINDINGS.add(
    nothing_failed=lambda: (ok("disk", "200 GB free"), skip("nat", "not joined yet")),
    something_failed=lambda: (warn("clock", "off", "Set it."), fail("torch", "none", "Install.")),
)

# -- what systemd and Windows read ----------------------------------------------------------------

UNITS = Codec("agent-systemd-unit", lambda command: unit_text(command, Path("/home/anna/usual")))
UNITS.add(
    usual=lambda: ["/home/anna/.local/bin/molink", "agent", "run"],
    with_a_folder=lambda: ["/opt/m", "agent", "run", "--data-dir", '/a "b" %c $d\\e'],
)
UNIT_NAMES = Codec(
    "agent-systemd-unit-name", lambda folder: unit_name(Path(folder), Path("/home/anna/usual"))
)
UNIT_NAMES.add(usual=lambda: "/home/anna/usual", another=lambda: "/home/anna/another")

TASKS = Codec("windows-logon-task", lambda task: task.xml())
TASKS.add(
    one=lambda: LogonTask(
        "S-1-5-21-1-2-3-1001", "Debian", PurePosixPath("/home/anna/.local/bin/molink")
    )
)

WSLCONFIGS = Codec("windows-wslconfig", with_mirrored, without_ours)
WSLCONFIGS.add(
    other_section=lambda: "[experimental]\r\nsparseVhd=true\r\n",
    another_mode=lambda: "[wsl2]\nmemory=8GB\nnetworkingMode = nat # for now\n",
)

CODECS = (
    LIMITS,
    OPTIONS,
    KNOWN,
    STEP_TIMES,
    STARTED,
    JOININGS,
    MEMBERSHIPS,
    STATUS,
    QUESTIONS,
    ANSWERS,
    FINDINGS,
    UNITS,
    UNIT_NAMES,
    TASKS,
    WSLCONFIGS,
)
