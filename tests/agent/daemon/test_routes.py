"""What the agent makes of its stage's words about a path."""

from dataclasses import dataclass, field

import pytest

from molink.stage_protocol.messages import PathMoved
from molink.transport.paths.choose import Path
from molink_agent.daemon.routes import RelayedRoutes, _Way
from molink_agent.daemon.shared_uplink import Household

RELAYED = Path("relay", "127.0.0.1:9")


@dataclass
class FakeKeeper:
    path: Path = RELAYED
    failures: list[Path] = field(default_factory=list)

    def failed(self, path: Path) -> None:
        self.failures.append(path)


@pytest.fixture
def way():
    return _Way(FakeKeeper(), None)


@pytest.fixture
def ways(way):
    ways = RelayedRoutes("node", Household(lambda: None))
    ways._ways["next"] = way
    return ways


def test_a_path_on_which_nothing_is_acknowledged_has_failed(ways, way):
    ways.path_moved(PathMoved("next", "tcp://10.0.0.1:7", False, "nothing is acknowledged"))
    assert way.keeper.failures == [way.keeper.path]


def test_a_move_that_went_well_changes_nothing(ways, way):
    way.asked = "tcp://127.0.0.1:9"
    ways.path_moved(PathMoved("next", "tcp://127.0.0.1:9", True, ""))
    assert way.keeper.failures == [] and way.asked == ""


def test_what_is_said_of_a_path_that_is_being_left_does_not_count_against_the_next(ways, way):
    way.asked = "tcp://127.0.0.1:9"
    ways.path_moved(PathMoved("next", "tcp://10.0.0.1:7", False, "another way was asked for"))
    assert way.keeper.failures == []
    ways.path_moved(PathMoved("next", "tcp://127.0.0.1:9", False, "nobody answers"))
    assert way.keeper.failures == [way.keeper.path]


def test_of_a_link_that_is_not_there_nothing_is_made(ways):
    before = dict(ways.paths)
    ways.path_moved(PathMoved("coordinator", "tcp://a:1", False, "nobody answers"))
    assert ways.paths == before
