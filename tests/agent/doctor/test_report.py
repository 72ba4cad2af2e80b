"""`molink agent doctor`: a table that fits, JSON for machines, and an exit code."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from molink_agent.cli.owner import doctor
from molink_agent.doctor import gather
from molink_agent.doctor.facts import DoctorFacts, Finding, PortTrial, Result, TorchAnswer
from molink_agent.doctor.report import CHECKS, as_json, examine, print_findings
from molink_agent.probe.gpus import NO_DRIVER, GpuReport
from tests.agent.pcs import pc

COLUMNS = 80

FINE = DoctorFacts(pc(), GpuReport(reason=NO_DRIVER), TorchAnswer("2.9.0+cpu"), PortTrial(0))
BROKEN = DoctorFacts(pc(), GpuReport(reason=NO_DRIVER), TorchAnswer(problem="no"), PortTrial(0))

FINDINGS = st.builds(
    Finding,
    check=st.sampled_from([one.check for one in examine(FINE)]),
    result=st.sampled_from(Result),
    found=st.text(min_size=1, max_size=400),
    remedy=st.text(max_size=400),
)


@pytest.fixture
def looked_at(monkeypatch):
    """The PC that the doctor is made to see."""

    def see(facts: DoctorFacts) -> None:
        async def gathered(data_dir):
            return facts

        monkeypatch.setattr(gather, "gather", gathered)

    return see


def table(findings: tuple[Finding, ...]) -> str:
    console = Console(width=COLUMNS, record=True, file=None, quiet=False)
    with console.capture() as caught:
        print_findings(findings, console)
    return caught.get()


def test_the_table_names_every_check_and_every_remedy():
    findings = examine(BROKEN)
    text = " ".join(table(findings).replace("│", " ").split())
    for one in findings:
        assert one.check in text
        assert " ".join(one.remedy.split()) in text


@settings(max_examples=40)
@given(st.lists(FINDINGS, max_size=4))
def test_the_table_fits_a_terminal(findings):
    widths = [cell_len(line) for line in table(tuple(findings)).split("\n")]
    assert max(widths) <= COLUMNS


def test_json_has_every_check(looked_at):
    looked_at(FINE)
    ran = CliRunner().invoke(doctor, ["--json"])
    report = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert report["ok"] is True
    assert len(report["checks"]) == len(CHECKS)
    assert set(report["checks"][0]) == {"check", "result", "found", "remedy"}


def test_something_to_mend_is_an_exit_code(looked_at):
    looked_at(BROKEN)
    ran = CliRunner().invoke(doctor, [])
    assert ran.exit_code == 1
    assert "Install MoLink anew" in ran.stdout


def test_a_warning_is_no_failure():
    warned = (Finding("a", Result.WARN, "b", "c"), Finding("a", Result.SKIP, "b"))
    assert as_json(warned)["ok"] is True


def test_every_option_says_what_it_does():
    assert doctor.help
    assert all(option.help for option in doctor.params)
