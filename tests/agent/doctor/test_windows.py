"""What the doctor says of the Windows around a WSL: answers of the script are imagined."""

import json
from dataclasses import replace

import pytest

from molink_agent.data_files import Known
from molink_agent.doctor.facts import DoctorFacts, PortTrial, Result, TorchAnswer
from molink_agent.doctor.report import examine
from molink_agent.doctor.windows import findings
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.machine import Wsl
from molink_agent.probe.windows import AroundWsl, ask_windows
from molink_scheduler.units import GB
from tests.agent.pcs import ONE_CARD, pc

TOLD = {
    "build": "22631",
    "virtualisation": "on",
    "wsl-version": "2.3.26.0",
    "distribution": "Ubuntu-24.04",
    "distribution-wsl": "2",
    "task-registered": "yes",
    "runs-as": r"PC\Kim",
    "logged-on": r"pc\kim",
    "nvidia-driver": "580.82",
    "sleeps-after-s": "0",
    "free-disk-gb": "120",
    "firewall-ports": "27600-27663",
    "memory-gb": 16,
}
WELL = AroundWsl.read(json.dumps(TOLD))
FACTS = DoctorFacts(
    machine=pc(memory_bytes=12 * GB),
    gpus=ONE_CARD,
    torch=TorchAnswer("2.13.0"),
    port=PortTrial(0),
    wsl=Wsl(2, "mirrored"),
    windows=WELL,
)


def of(check, facts=FACTS, **told):
    windows = replace(WELL, **told)
    return next(one for one in findings(replace(facts, windows=windows)) if one.check == check)


def test_a_pc_where_all_is_well():
    found = findings(FACTS)
    assert {one.result for one in found} == {Result.OK}
    assert not any(one.remedy for one in found)
    assert len(found) == 9 and set(found) < set(examine(FACTS))


def test_a_linux_of_its_own_has_none_of_them():
    assert findings(replace(FACTS, wsl=None)) == ()


def test_a_windows_that_does_not_answer_is_one_line():
    (found,) = findings(replace(FACTS, windows=None))
    assert found.result is Result.SKIP and "Hyper-V firewall" in found.found


@pytest.mark.parametrize(
    ("check", "told", "says"),
    [
        ("firewall", {"firewall_ports": "none"}, "at 27600-27663"),
        ("firewall", {"firewall_ports": "80-90"}, "lets in at 80-90"),
        ("account", {"logged_on": r"PC\Ada"}, r"PC\Ada is logged on"),
        ("wsl.exe", {"wsl_version": None}, "older than 2.0"),
        ("wsl.exe", {"wsl_version": (1, 2, 5)}, "older than 2.0"),
        ("driver, Windows", {"nvidia_driver": ""}, "the CPU is lent"),
        ("sleep", {"sleeps_after_s": 1800}, "after 30 min"),
        ("disk, Windows", {"free_disk_gb": 7}, "7 GB free"),
        ("memory cap", {"memory_gb": 32}, "12.0 GB of the PC's 32.0 GB"),
        ("start at logon", {"task_registered": False}, "no task"),
    ],
)
def test_what_is_not_well_is_said_with_its_remedy(check, told, says):
    found = of(check, **told)
    assert found.result is Result.WARN and found.remedy and says in found.found


@pytest.mark.parametrize(
    ("wsl", "ports", "result"),
    [
        (Wsl(2, "mirrored"), "no firewall", Result.OK),
        (Wsl(2, "mirrored"), "not told", Result.SKIP),
        (Wsl(2, "nat"), "none", Result.SKIP),
    ],
)
def test_no_rule_is_missed_where_none_is_needed_or_known(wsl, ports, result):
    assert of("firewall", replace(FACTS, wsl=wsl), firewall_ports=ports).result is result


def test_the_rule_is_to_name_the_ports_of_the_agent_that_has_joined():
    joined = replace(FACTS, known=Known(broker_host="h"), port=PortTrial(9000))
    assert of("firewall", joined, firewall_ports="9000-9063").result is Result.OK
    assert of("firewall", joined).result is Result.WARN


@pytest.mark.parametrize("ports", ["none", "1-65535", "27600-27663"])
def test_no_rule_is_to_name_the_ports_of_an_agent_that_takes_any(ports):
    found = of("firewall", replace(FACTS, known=Known(broker_host="h")), firewall_ports=ports)
    assert found.result is Result.WARN and "any free port" in found.found
    assert "--data-port 27600" in found.remedy


def test_nobody_is_urged_to_open_the_firewall_who_lets_nobody_connect():
    relayed = replace(FACTS, limits=OwnerLimits(direct=False))
    found = of("firewall", relayed, firewall_ports="none")
    assert found.result is Result.SKIP and "direct = false" in found.found


def test_a_missing_compiler_is_said():
    assert of("compiler", replace(FACTS, compiles=False)).result is Result.WARN


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", "[" * 100_000, json.dumps(TOLD | {"free-disk-gb": "much"})]
)
def test_what_is_no_answer_is_nothing(text):
    assert AroundWsl.read(text) is None


async def test_the_script_is_asked_for_this_distribution(monkeypatch):
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    asked = []

    async def ask(*command, timeout_s):
        asked.append(command)
        return json.dumps(TOLD)

    assert await ask_windows(ask) == WELL
    assert asked[0][0] == "powershell.exe" and asked[0][-1].endswith("-Distribution 'Debian'")
