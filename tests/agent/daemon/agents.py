"""Agents that are put together and not connected, over graphics cards that tests imagine."""

from dataclasses import dataclass, field

from molink.control.addresses import ServerTrust
from molink.control.identity import KeyPair
from molink.control.messages.joining import JoinAnswer
from molink_agent.daemon.agent import Agent
from molink_agent.daemon.membership import Membership
from molink_agent.daemon.process import build_agent
from molink_agent.probe.gpus import GpuProbe
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml

PAIR = KeyPair.of_secret(bytes(range(32)))


def membership(name: str = "attic", node_id: str = PAIR.node_id, **changes) -> Membership:
    answer = JoinAnswer(
        challenge="0" * 32,
        node_id=node_id,
        broker_port=1,
        broker_tls=ServerTrust(certificate="PEM"),
        agents_tls=ServerTrust(certificate="PEM"),
        username=node_id,
        password="p" * 32,
        weights_token="t" * 32,
        time_unix_s=0.0,
        coordinator_public_key=PAIR.public_z85,
    )
    made = Membership(url="https://127.0.0.1:9", name=name, answer=answer, clock_offset_s=0.0)
    return made.model_copy(update=changes)


def agent_with(data_dir, *cards, **limits: str) -> tuple[Agent, FakeNvml]:
    """An agent on a PC with these cards, and the driver."""
    agent = build_agent(data_dir, PAIR, membership())
    driver = FakeNvml(list(cards))
    agent.pc.gpus = GpuProbe(driver)
    for key, value in limits.items():
        agent.owner.limits.set(key, value)
    return agent, driver


def agent_with_two_nodes(data_dir) -> Agent:
    agent, _ = agent_with(data_dir, FakeCard(), FakeCard())
    agent._add_node()
    return agent


@dataclass
class FakeGroup:
    """In place of a task group: which nodes were started, without running them."""

    started: list[str] = field(default_factory=list)

    def create_task(self, coroutine):
        self.started.append(coroutine.__name__)
        coroutine.close()
