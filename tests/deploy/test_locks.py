"""The lists of pinned packages name all that MoLink runs with, by checksum, and no machine."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tools import locks

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAMES = ("requirements.lock", "extras.lock", "torch.lock")
LOCKS = {name: (ROOT / "molink" / name).read_text() for name in NAMES}
ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==(\S+)([^\n]*\\\n(?: {4}--hash=sha256:[0-9a-f]{64}.*\n?)+)", re.M
)


def pinned(text: str) -> dict[str, set[Version]]:
    """Versions by name; networkx, say, has another for newer Pythons."""
    found: dict[str, set[Version]] = {}
    for name, version, _ in ENTRY.findall(text):
        found.setdefault(name, set()).add(Version(version))
    return found


ALL = pinned("".join(LOCKS.values()))


VOLUNTEERS = pinned(LOCKS["requirements.lock"] + LOCKS["torch.lock"])
EXTRAS = [
    one for extra in locks.EXTRAS for one in PROJECT["project"]["optional-dependencies"][extra]
]


def check_pinned(wanted: str, pins: dict[str, set[Version]]) -> None:
    requirement = Requirement(wanted)
    assert pins[requirement.name], "run `make lock`"
    assert all(version in requirement.specifier for version in pins[requirement.name])


@pytest.mark.parametrize(
    "wanted", [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
)
def test_every_dependency_is_pinned_to_a_version_that_the_project_takes(wanted):
    check_pinned(wanted, VOLUNTEERS)


@pytest.mark.parametrize("wanted", EXTRAS)
def test_what_a_coordinator_has_beside_is_pinned_and_no_volunteer_has_it(wanted):
    check_pinned(wanted, pinned(LOCKS["extras.lock"]))
    assert Requirement(wanted).name not in VOLUNTEERS


def test_what_a_coordinator_has_beside_is_complete():
    """As far as the versions that are installed here say what they need."""
    names = pinned(LOCKS["extras.lock"])
    needs = [Requirement(one) for name in names for one in metadata.requires(name) or ()]
    plain = [one for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert len(plain) > len(names)
    assert not {one.name for one in plain if one.name.lower().replace("_", "-") not in ALL}


def test_versions_are_those_that_the_tests_run_on():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, version in tried.items():
        known = ALL.get(name.lower().replace("_", "-"))
        assert known is None or Version(version) in known, f"{name}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_is_without_a_checksum_or_from_elsewhere(lock):
    text = LOCKS[lock]
    rest = ENTRY.sub("", text)
    assert all(line.startswith("#") for line in rest.splitlines() if line), rest
    assert not re.search(r"://|/opt/|file:|-index-url|find-links", text)


def test_torch_has_a_list_of_its_own():
    assert {"torch", "triton"} <= pinned(LOCKS["torch.lock"]).keys()
    assert not pinned(LOCKS["torch.lock"]).keys() & pinned(LOCKS["requirements.lock"]).keys()


def test_the_installer_takes_nothing_that_is_not_in_them():
    script = (ROOT / "deploy" / "install.sh").read_text()
    installs = re.findall(r"^\s+pip install (.*)$", script, re.M)
    assert len(installs) == 5
    by_version = [line for line in installs if "--index-url" in line]
    own = [line for line in installs if "--force-reinstall" in line]
    assert (len(by_version), own) == (1, ['--force-reinstall --no-deps --no-build-isolation "$@"'])
    others = set(installs) - {*by_version, *own}
    assert all(line.startswith("--require-hashes ") for line in others)


def test_what_the_tests_run_on_installs_on_the_oldest_python():
    """Such as Debian 12's 3.11.2."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE))
    installed = {one.name: one.metadata for one in metadata.distributions() if one.name in pins}
    wanted = {name: about.get("Requires-Python") or "" for name, about in installed.items()}
    assert len(wanted) > 50
    assert not {name for name, range_ in wanted.items() if "3.11.0" not in SpecifierSet(range_)}
