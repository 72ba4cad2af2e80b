"""A ring whose stages run at addresses of their own, each by way of a command."""

import psutil

from molink.bench.served_ring import serve_ring
from tests.end_to_end.command_line import forking_environment
from tests.end_to_end.forked.asking import fork_of
from tools.experiments.harness.hosted_ring import HOSTS_VARIABLE, MODULE
from tools.experiments.harness.hosts import RingHosts, StageAddress

ENV = ("env", "SOME=thing")
HOSTS = RingHosts((StageAddress("127.0.0.2"), StageAddress("127.0.0.3", ENV)), "127.0.0.5")


def listening(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


def test_hosts_come_back_from_their_text():
    assert RingHosts.from_text(HOSTS.text) == HOSTS


async def test_each_stage_runs_in_its_home_and_listens_there(tmp_path):
    place = {HOSTS_VARIABLE: HOSTS.text, **forking_environment(tmp_path)}
    async with serve_ring("demo", ("--nodes", "2"), 1, (20, 4), place, MODULE) as ring:
        stages = (await ring.cluster())["stages"]
        assert [listening(fork_of(stage["pid"])) for stage in stages] == [
            {"127.0.0.2"},
            {"127.0.0.3"},
        ]
        assert HOSTS.coordinator_address in listening(ring.server.pid)
        some = [psutil.Process(stage["pid"]).environ().get("SOME") for stage in stages]
        assert some == [None, "thing"]
