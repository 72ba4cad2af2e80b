"""Which PCs have gone over to the coordinator beside, which have not, and why; and what is refused
once one of both has ended."""

import json
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.cli.upkeep import moving
from molink.config.data_dir import api_socket
from molink.control.identity import KeyPair
from molink.control.private_file import private_socket
from molink.control.registry.registry import Registry
from molink.control.registry.succession import Successor, moved_pcs, set_successor, successor_of
from molink.errors import UserError
from tests.control.registry.joining import NOW, make, request

PORT, PORT_BESIDE = 9000, 9010


class Cluster:
    """Two folders of a cluster, and the sockets of those coordinators that run."""

    def __init__(self, top: Path):
        self.here, self.beside = top / "a", top / "b"
        self.ids, self.running = {}, {}
        self.live = {self.here: {}, self.beside: {}}
        for folder, port in ((self.here, PORT), (self.beside, PORT_BESIDE)):
            with closing(Registry.open(folder)) as registry:
                registry.url, registry.api_url = "https://home:8003", f"http://home:{port}"
            self.start(folder, port)
        with closing(Registry.open(self.here)) as registry:
            set_successor(registry, Successor(str(self.beside), PORT_BESIDE, 1, ("new",)))

    def start(self, folder, port):
        self.running[folder] = private_socket(api_socket(folder, port))
        self.running[folder].listen()

    def end(self, folder):
        self.running.pop(folder).close()

    def join(self, *names):
        with closing(Registry.open(self.here)) as registry:
            for name in names:
                pair = KeyPair.generate()
                registry.admit(pair.public, request(make(registry), name=name), NOW)
                self.ids[name] = pair.node_id

    def tell(self, folder, name, state, reason=""):
        self.live[folder][self.ids[name]] = {"state": state, "reason": reason}

    def live_nodes(self, url, data_dir):
        return self.live[Path(data_dir)] if Path(data_dir) in self.running else None

    def move(self, *words):
        words = ["node", "move", *words, "--data-dir", str(self.here)]
        return CliRunner().invoke(cli, words, catch_exceptions=False).output

    def rows(self):
        return {row.pop("name"): row for row in json.loads(self.move("--json"))}

    def moved(self):
        with closing(Registry.open(self.here)) as registry:
            return moved_pcs(registry)


@pytest.fixture
def pair(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="m") as top:
        made = Cluster(Path(top))
        monkeypatch.setattr("molink.cli.upkeep.moving.live_nodes", made.live_nodes)
        yield made
        for folder in list(made.running):
            made.end(folder)


def test_each_pc_is_listed_with_where_it_is_and_why(pair):
    pair.join("anna", "ben", "cleo", "dora", "eve", "fay")
    pair.move("anna", "ben", "cleo", "dora", "eve")
    pair.tell(pair.beside, "anna", "serving")
    pair.tell(pair.beside, "ben", "outdated", "Its MoLink is too old.")
    pair.tell(pair.here, "cleo", "serving")
    pair.tell(pair.here, "fay", "lost", "Its PC is off.")
    with closing(Registry.open(pair.beside)) as registry:
        registry.remove_node("eve", NOW)
    rows = pair.rows()
    assert {name: row["where"] for name, row in rows.items()} == {
        "anna": "over",
        "ben": "over",
        "cleo": "going",
        "dora": "waiting",
        "eve": "removed",
        "fay": "here",
    }
    assert (rows["ben"]["state"], rows["ben"]["reason"]) == ("outdated", "Its MoLink is too old.")
    assert (rows["fay"]["state"], rows["fay"]["reason"]) == ("lost", "Its PC is off.")
    assert "--broker-port" in rows["dora"]["reason"] and "key is refused" in rows["eve"]["reason"]
    assert "answers under way" in rows["cleo"]["reason"].lower()


def test_status_tells_who_was_handed_over(pair):
    pair.join("anna", "ben")
    url = f"http://127.0.0.1:{PORT}"
    assert moving.handed_over(url, None, str(pair.here)) == []
    pair.move("ben")
    pair.tell(pair.beside, "ben", "loading", "")
    (row,) = moving.handed_over(url, None, str(pair.here))
    assert (row["name"], row["where"], row["state"]) == ("ben", "over", "loading")
    assert moving.handed_over(url, "a-key", str(pair.here)) == []
    assert moving.handed_over(f"http://127.0.0.1:{PORT_BESIDE}", None, str(pair.beside)) == []


@pytest.mark.parametrize("words", [("anna",), ("anna", "--back"), ()])
def test_after_the_first_has_ended_nobody_is_moved(pair, words):
    pair.join("anna")
    pair.move("anna")
    pair.end(pair.here)
    before = pair.moved()
    with pytest.raises(UserError, match=r"has ended.*molink up MODEL .*--replaces \S+/b`"):
        pair.move(*words)
    assert pair.moved() == before


def test_while_the_other_does_not_run_pcs_can_only_be_taken_back(pair):
    pair.join("anna", "ben")
    pair.move("anna")
    pair.end(pair.beside)
    with pytest.raises(UserError, match="does not run"):
        pair.move("ben")
    assert "start it again" in pair.rows()["anna"]["reason"]
    pair.move("anna", "--back")
    assert not pair.moved()
    with closing(Registry.open(pair.here)) as registry:
        assert successor_of(registry) is None, "nobody is led on to who is not there"


def test_back_wants_names(pair):
    with pytest.raises(UserError, match="--back takes the names"):
        pair.move("--back")
