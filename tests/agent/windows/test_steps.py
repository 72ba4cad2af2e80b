"""Steps for PCs as they are, and what holds for all of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_agent.windows.steps import Do, WindowsFacts, parse_version, plan_steps

WINDOWS_11 = WindowsFacts(
    build=22631,
    virtualisation=True,
    wsl_version=(2, 3, 26, 0),
    distribution="Ubuntu-24.04",
    distribution_wsl=2,
    mirrored=False,
    python_complete=False,
    has_apt=True,
)

FACTS = st.builds(
    WindowsFacts,
    build=st.integers(0, 30_000),
    virtualisation=st.booleans(),
    wsl_version=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)),
    distribution=st.just("Debian"),
    distribution_wsl=st.sampled_from((1, 2)),
    mirrored=st.booleans(),
    python_complete=st.booleans(),
    has_apt=st.booleans(),
    task_registered=st.booleans(),
    runs_as=st.sampled_from(("", "a", "b")),
    logged_on=st.sampled_from(("", "a")),
    nvidia_driver=st.sampled_from((None, "", "1.2")),
    sleeps_after_s=st.integers(0, 9999),
    free_disk_gb=st.none() | st.integers(0, 99),
)


def doings(facts: WindowsFacts) -> list[Do]:
    return [step.do for step in plan_steps(facts)]


def says(facts: WindowsFacts) -> str:
    return " ".join(step.text for step in plan_steps(facts))


def test_a_fresh_windows_11_goes_all_the_way():
    assert doings(WINDOWS_11) == [
        Do.SET_MIRRORED,
        Do.RESTART_WSL,
        Do.INSTALL_PACKAGES,
        Do.INSTALL_AGENT,
        Do.REGISTER_TASK,
    ]


def test_another_account_than_the_one_logged_on_stops_with_the_reason():
    trapped = replace(WINDOWS_11, runs_as=r"PC\Admin", logged_on=r"PC\Kim")
    assert doings(trapped) == [Do.STOP]
    assert r"PC\Kim" in says(trapped) and r"PC\Admin" in says(trapped)
    for same in (replace(trapped, runs_as=r"pc\kim"), replace(trapped, logged_on="")):
        assert doings(same) == doings(WINDOWS_11)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"nvidia_driver": ""}, "the CPU alone would be lent"),
        ({"free_disk_gb": 7}, "The drive has 7 GB free"),
        ({"sleeps_after_s": 1800}, "sleeps after 30 min"),
        ({"sleeps_after_s": 5}, "sleeps after 1 min"),
    ],
)
def test_what_keeps_a_pc_from_helping_is_said_first(facts, sentence):
    steps = plan_steps(replace(WINDOWS_11, **facts))
    assert steps[0].do is Do.NOTE and sentence in steps[0].text
    assert [step.do for step in steps[1:]] == doings(WINDOWS_11)


def test_what_is_well_or_not_known_is_not_said():
    well = {"nvidia_driver": "580.82", "free_disk_gb": 20, "sleeps_after_s": 0}
    assert doings(replace(WINDOWS_11, **well)) == doings(WINDOWS_11)


def test_a_second_run_repairs_the_agent_and_the_task_alone():
    done = replace(WINDOWS_11, mirrored=True, python_complete=True, task_registered=True)
    assert doings(done) == [Do.INSTALL_AGENT, Do.REGISTER_TASK]
    assert "Renewing the task" in says(done)


@pytest.mark.parametrize("build", [19045, 22000])
def test_without_mirrored_networking_it_stays_behind_nat_with_a_note(build):
    older = replace(WINDOWS_11, build=build)
    assert Do.SET_MIRRORED not in doings(older)
    assert Do.RESTART_WSL not in doings(older)
    assert "needs Windows 11 22H2" in says(older)
    assert doings(replace(older, mirrored=True)) == doings(older)


@pytest.mark.parametrize("version", [None, (1, 2, 5, 0)])
def test_an_old_wsl_is_updated_before_anything_else(version):
    assert doings(replace(WINDOWS_11, wsl_version=version))[0] is Do.UPDATE_WSL


def test_wsl1_is_left_behind():
    assert doings(replace(WINDOWS_11, distribution_wsl=1))[0] is Do.CONVERT_DISTRIBUTION


def test_without_apt_the_installer_in_linux_has_the_word():
    assert Do.INSTALL_PACKAGES not in doings(replace(WINDOWS_11, has_apt=False))


@pytest.mark.parametrize(
    ("change", "remedy"),
    [({"build": 18363}, "update Windows"), ({"virtualisation": False}, "VT-x, AMD-V or SVM")],
)
def test_what_only_the_owner_can_do_stops_everything(change, remedy):
    facts = replace(WINDOWS_11, **change)
    assert doings(facts) == [Do.STOP]
    assert remedy in says(facts)


@given(FACTS)
def test_every_plan_makes_sense(facts):
    steps = doings(facts)
    assert len(set(steps) - {Do.NOTE}) == len([do for do in steps if do is not Do.NOTE])
    if Do.STOP in steps:
        assert steps == [Do.STOP]
        return
    assert steps[-2:] == [Do.INSTALL_AGENT, Do.REGISTER_TASK]
    if Do.SET_MIRRORED in steps:
        assert facts.build >= 22621
        assert steps.index(Do.RESTART_WSL) == steps.index(Do.SET_MIRRORED) + 1
    assert all(step.text.isascii() and step.text.endswith(".") for step in plan_steps(facts))


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.3.26.0", (2, 3, 26, 0)), (" 2.0.0\r\n", (2, 0, 0)), ("unknown", None), ("", None)],
)
def test_versions(text, version):
    assert parse_version(text) == version
