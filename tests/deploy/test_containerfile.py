"""The container file cannot be built by the tests; what a build would trip over is looked at."""

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"
KNOWN = {
    *("FROM", "ARG", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE"),
    *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


@dataclass
class Instruction:
    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        return [word for word in self.rest.split() if not word.startswith("--")]


def instructions() -> list[Instruction]:
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in whole.splitlines() if line.strip()]


def of(name: str) -> list[Instruction]:
    return [instruction for instruction in instructions() if instruction.name == name]


def copied_from_the_checkout() -> list[tuple[list[str], str]]:
    copies = [copy for copy in of("COPY") if "--from=" not in copy.rest]
    return [(copy.words[:-1], copy.words[-1]) for copy in copies]


def test_every_instruction_is_known_and_it_begins_with_an_image():
    assert {instruction.name for instruction in instructions()} <= KNOWN
    assert instructions()[0].name == "FROM"


def test_everything_that_is_copied_exists():
    for sources, _ in copied_from_the_checkout():
        for source in sources:
            assert (ROOT / source).exists(), source


def test_a_stage_that_is_copied_from_is_one_that_was_named():
    named = {found[1] for line in of("FROM") if (found := re.search(r" AS (\w+)$", line.rest))}
    used = set(re.findall(r"--from=(\w+)", FILE.read_text()))
    assert used == named


def test_what_is_copied_is_all_that_a_build_of_the_package_reads(tmp_path):
    for sources, place in copied_from_the_checkout():
        if not place.startswith("/src"):
            continue
        for source in sources:
            target = tmp_path / place.removeprefix("/src").lstrip("/")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("*.pyc"))
            else:
                shutil.copy(ROOT / source, target)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    build = project["tool"]["hatch"]["build"]
    sim = tomllib.loads((tmp_path / "sim" / "pyproject.toml").read_text())["tool"]["hatch"]
    needed = [
        *build["targets"]["wheel"]["packages"],
        *(f"sim/{package}" for package in sim["build"]["targets"]["wheel"]["packages"]),
        f"sim/{sim['metadata']['hooks']['custom']['path']}",
        f"sim/{sim['version']['path']}",
        project["project"]["readme"],
        *project["project"]["license-files"],
        project["tool"]["hatch"]["version"]["path"],
    ]
    assert not [path for path in needed if not (tmp_path / path).exists()]


def test_everything_is_installed_by_its_checksum():
    """But torch of an index of its own, by version, and MoLink itself, from here."""
    installs = [one for run in of("RUN") for one in re.findall(r"pip install ([^;]*)", run.rest)]
    assert len(installs) == 5
    for install in installs:
        by_version = "--index-url" in install and "torch==" in install
        own = install.endswith("--no-deps --no-build-isolation /src /src/sim")
        assert "--require-hashes" in install or by_version or own, install


def test_it_ends_as_an_ordinary_user_whom_the_manifests_know():
    last = of("USER")[-1].rest
    user, group = map(int, last.split(":"))
    assert user > 0
    assert f"--uid {user} " in FILE.read_text()
    for name in ("coordinator", "agents"):
        first, *_ = yaml.safe_load_all((ROOT / f"deploy/kubernetes/{name}.yaml").read_text())
        context = first["spec"]["template"]["spec"]["securityContext"]
        assert (context["runAsUser"], context["fsGroup"]) == (user, group)


def test_what_it_starts_lies_where_it_was_copied():
    entry = json.loads(of("ENTRYPOINT")[0].rest)
    healthy = json.loads(of("HEALTHCHECK")[0].rest.split("CMD ")[1])
    json.loads(of("CMD")[0].rest)
    sources, place = next(copy for copy in copied_from_the_checkout() if "start.sh" in copy[0][0])
    there = {place + Path(source).name for source in sources}
    assert {entry[-1], healthy[-1]} == there
    assert entry[0] == "tini"
    installed = next(run.rest for run in of("RUN") if "apt-get" in run.rest)
    assert "tini" in installed.split()


@pytest.mark.parametrize("file", sorted((ROOT / "deploy/container").glob("*.sh")), ids=str)
def test_its_scripts_are_read_by_sh(file):
    subprocess.run(["sh", "-n", str(file)], check=True)


@pytest.fixture
def container(sandbox):
    sandbox.fake("molink", 'printf "%s\\n" "$*"')
    return sandbox


def start(container, *words: str, **environment: str):
    script = ROOT / "deploy/container/start.sh"
    return container.run(*words, script=script, XDG_DATA_HOME=str(container.home), **environment)


def test_an_agent_joins_once_and_then_stays_a_member(container):
    done = start(container, "agent", "--device", "cpu", MOLINK_INVITE="abc")
    assert done.stdout == "agent join --device cpu\n"  # The invite stays out of `ps`.
    (container.home / "molink-agent").mkdir()
    (container.home / "molink-agent/membership.json").write_text("{}")
    assert start(container, "agent", "--device", "cpu").stdout == "agent run\n"


def test_an_agent_without_an_invite_says_so(container):
    done = start(container, "agent")
    assert done.returncode == 2
    assert "set MOLINK_INVITE" in done.stderr


@pytest.mark.parametrize("words", [("up", "demo"), ("agent", "status"), ("--help",), ()])
def test_other_words_are_molinks(container, words):
    assert start(container, *words).stdout == " ".join(words) + "\n"


def healthy(container, *words: str) -> int:
    main = container.home / "cmdline"
    main.write_bytes(b"\0".join(word.encode() for word in ("tini", "--", *words)) + b"\0")
    script = ROOT / "deploy/container/healthy.sh"
    return container.run(script=script, MOLINK_MAIN_PROCESS=str(main)).returncode


def test_an_agent_is_healthy_when_it_answers(container):
    assert healthy(container, "agent") == 0
    container.fake("molink", "exit 2")
    assert healthy(container, "agent", "--device", "cpu") != 0


def test_a_coordinator_is_healthy_when_its_port_is_asked_for(container):
    container.fake("python3", 'cat >/dev/null; [ "$2" = 8123 ]')
    assert healthy(container, "up", "demo", "--port", "8123") == 0
    assert healthy(container, "up", "demo", "--port", "9000") != 0


def test_the_question_at_the_port_is_python(sandbox):
    script = (ROOT / "deploy/container/healthy.sh").read_text()
    asked = compile(script.split("<<'END'\n")[1].split("END")[0], "healthy.sh", "exec")
    assert asked.co_names, "it does something"
