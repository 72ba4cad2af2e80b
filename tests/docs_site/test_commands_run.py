"""Every command that stands in a block of a page is typed by a reader, from top to bottom.

A real cluster of the demo model on loopback answers them: started, joined, watched and ended by the
commands of the pages themselves. What cannot run here is named in not_run, with its reason; what
stands between backticks within a sentence is parsed in test_commands_of_pages. They take some
minutes, so `make pages` runs them and `make test` does not.
"""

import platform
import re
from contextlib import ExitStack

import pytest

from tests.docs_site.not_run import NOT_RUN, reason_not_to_run
from tests.docs_site.pages import PAGES, ROOT, code_blocks, is_shell, joined, shell_lines
from tests.docs_site.reader import Reader, is_a_program_that_goes_on

OPERATING = ("operating", "keys", "serving", "keeping", "model-files", "deploying")
"""Pages of an operator, in the order in which one reads them."""

ANSWERED = "requests are answered"


class Story:
    """Readers who follow pages: an operator, and volunteers of the operator's cluster."""

    def __init__(self, operator: Reader) -> None:
        self.operator = operator

    def follow(self, page: str, reader: Reader) -> None:
        """Type what a page says, in its order, and end what is left running in the terminals."""
        blocks = list(code_blocks((ROOT / page).read_text(encoding="utf-8")))
        for block in (text for language, text in blocks if language == "toml"):
            if "[[nodes]]" in block:
                (reader.folder / "nodes.toml").write_text(block)
        for language, block in blocks:
            if language == "python" and "OpenAI(" in block:
                self.run_python(block, reader)
            elif is_shell(language, block):
                for line in joined(block):
                    self.type(re.sub(r"^\S*\.venv/bin/", "", line), reader)
        reader.interrupt("dashboard")

    def type(self, line: str, reader: Reader) -> None:
        if reason_not_to_run(line):
            return
        if not is_a_program_that_goes_on(line):
            reader.type(line)
            if line.startswith("molink node remove"):
                reader.interrupt("agent")
            return
        program = reader.start(line)
        if program is reader.running.get("agent"):
            program.line_with("serving", "standby")
        self.wait_for_the_cluster(reader)

    def wait_for_the_cluster(self, reader: Reader) -> None:
        """As long as a reader would wait, before the next line."""
        server = reader.running.get("server") or self.operator.running["server"]
        if invites := [line for line in server.lines if line.startswith("molink agent join")]:
            reader.filled_in["INVITE"] = invites[0].split()[-1]
            if "agent" in reader.running:
                server.line_with(ANSWERED)

    def run_python(self, block: str, reader: Reader) -> None:
        (reader.folder / "program.py").write_text(reader.typed(block))
        assert reader.type("python program.py").strip()


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """An operator, whose cluster is shared by all pages of this module."""
    with ExitStack() as stack:
        operator = Reader(tmp_path_factory.mktemp("operator"), stack)
        operator.filled_in |= {"MODEL": "demo", "URL": operator.url, "NODE": platform.node()}
        yield Story(operator)


@pytest.fixture
def coordinator(story):
    """It runs; a command of the pages starts it where no other test has."""
    if "server" not in story.operator.running:
        story.type("molink up MODEL --port 8000", story.operator)
    return story


@pytest.fixture
def cluster(coordinator):
    """It answers, with one PC."""
    if "agent" not in coordinator.operator.running:
        coordinator.type("molink agent join INVITE", coordinator.operator)
    return coordinator


@pytest.mark.pages
def test_the_readme(story):
    story.follow("README.md", story.operator)


@pytest.mark.pages
def test_the_dashboard(cluster):
    cluster.follow("docs/dashboard.md", cluster.operator)


@pytest.mark.pages
def test_metrics(cluster):
    cluster.follow("docs/metrics.md", cluster.operator)


@pytest.mark.pages
def test_simulating_and_planning(tmp_path):
    """Without a cluster; the list of PCs is the simulator's."""
    with ExitStack() as stack:
        alone = Reader(tmp_path / "home", stack)
        alone.filled_in["MODEL"] = "demo"
        for page in ("docs/simulator.md", "docs/placement.md"):
            Story(alone).follow(page, alone)


@pytest.mark.pages
def test_operating(cluster):
    for page in OPERATING:
        cluster.follow(f"docs/{page}.md", cluster.operator)


@pytest.mark.pages
def test_volunteering(coordinator, tmp_path_factory):
    with ExitStack() as stack:
        volunteer = Reader(tmp_path_factory.mktemp("volunteer"), stack)
        volunteer.filled_in = coordinator.operator.filled_in
        coordinator.follow("docs/volunteering.md", volunteer)


FOLLOWED = (
    *("README", "dashboard", "metrics", "volunteering", "placement", "simulator"),
    *OPERATING,
)


def test_every_command_of_other_pages_has_a_reason():
    for page in PAGES:
        if page.stem not in FOLLOWED or page.parent.name == "benchmarks":
            for line in shell_lines(page.read_text(encoding="utf-8")):
                assert reason_not_to_run(line), f"{page.name}: {line}"


def test_every_reason_is_of_a_command():
    lines = [line for page in PAGES for line in shell_lines(page.read_text(encoding="utf-8"))]
    for what in NOT_RUN:
        assert any(re.fullmatch(what, line) for line in lines), what
