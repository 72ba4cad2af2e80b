"""Joining: when nobody answers, and how a further device gets in."""

import pytest

from molink.control.identity import KeyPair
from molink.control.messages.invites import Invite
from molink.control.private_file import write_private
from molink.errors import JoinRefusedError, UserError
from molink_agent.daemon import membership as membership_module
from molink_agent.daemon.membership import (
    DEVICES_DIR,
    EARLIER_DEVICES_DIR,
    device_dir,
    forget_membership,
    join_cluster,
    load_membership,
)
from tests.agent.daemon.agents import PAIR, agent_with_two_nodes, membership


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://127.0.0.1:9", r"\(Connection refused\)"),
        ("https://name.invalid:8003", r"\(its name is not known\)"),
    ],
)
async def test_a_coordinator_out_of_reach_is_named_with_the_reason(tmp_path, url, why):
    pair = KeyPair.generate()
    with pytest.raises(UserError, match=why):
        await join_cluster(Invite.make(url, pair.public), pair, "attic", tmp_path)
    assert load_membership(tmp_path) is None


async def test_a_coordinator_that_cannot_take_a_pc_in_now_is_asked_again(tmp_path, monkeypatch):
    answers = [(503, b'{"error": {"message": "just now"}}')] * 3 + [(403, b'{"error": {}}')]

    async def post(url, body, trust):
        return answers.pop(0)

    monkeypatch.setattr(membership_module, "_post", post)
    monkeypatch.setattr(membership_module, "RETRY_FIRST_S", 0.0)
    pair = KeyPair.generate()
    with pytest.raises(JoinRefusedError):
        await join_cluster(Invite.make("https://a:1", pair.public), pair, "attic", tmp_path)
    assert not answers


def test_a_membership_that_is_not_there_can_be_forgotten(tmp_path):
    forget_membership(tmp_path)
    assert load_membership(tmp_path) is None


@pytest.mark.parametrize("name", [DEVICES_DIR, EARLIER_DEVICES_DIR])
def test_those_of_all_devices_are_forgotten(tmp_path, name):
    write_private(tmp_path / name / "1" / "membership.json", "kept")
    forget_membership(tmp_path)
    assert not (tmp_path / name).exists()


async def test_what_an_earlier_agent_kept_of_a_further_device_counts(tmp_path, monkeypatch):
    made_before = agent_with_two_nodes(tmp_path / "other").nodes[1]
    joined = membership("attic (2)", made_before.session.node_id)
    before = tmp_path / EARLIER_DEVICES_DIR / "1" / "membership.json"
    write_private(before, joined.model_dump_json())
    second = agent_with_two_nodes(tmp_path).nodes[1]
    asked = answering(monkeypatch)
    assert await second.admission.enter() == joined and not asked
    assert not before.exists() and second.admission.directory == tmp_path / DEVICES_DIR / "1"


def test_what_an_agent_keeps_now_stays_beside_what_an_earlier_one_kept(tmp_path):
    for name in (DEVICES_DIR, EARLIER_DEVICES_DIR):
        write_private(tmp_path / name / "1" / "membership.json", name)
    kept = device_dir(tmp_path, 1) / "membership.json"
    assert kept.read_text() == DEVICES_DIR


def answering(monkeypatch, *answers):
    """The coordinator's answers to further devices that ask, one after the other."""
    left, asked = list(answers), []

    async def join_device(pc, pc_pair, pair, name, directory):
        asked.append((pc.answer.node_id, pc_pair.node_id, pair.node_id, name))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(membership_module, "join_device", join_device)
    monkeypatch.setattr(membership_module, "RETRY_FIRST_S", 0.0)
    return asked


async def test_a_further_node_joins_by_the_pc_s_key_once_the_coordinator_answers(
    tmp_path, monkeypatch
):
    second = agent_with_two_nodes(tmp_path).nodes[1]
    joined = membership("attic (2)", second.session.node_id)
    asked = answering(monkeypatch, UserError("cannot be reached"), joined)
    assert await second.admission.enter() == joined
    assert await second.admission.enter() == joined
    assert asked == [(PAIR.node_id,) * 2 + (second.session.node_id, "attic (2)")] * 2


@pytest.mark.parametrize("changes", [{}, {"url": "https://other:9"}, {"name": "cellar (2)"}])
async def test_what_was_kept_counts_in_the_same_cluster_under_the_same_name(
    tmp_path, monkeypatch, changes
):
    second = agent_with_two_nodes(tmp_path).nodes[1]
    fresh = membership("attic (2)", second.session.node_id)
    kept = fresh.model_copy(update=changes)
    directory = second.admission.directory
    directory.mkdir(parents=True)
    (directory / "membership.json").write_text(kept.model_dump_json())
    (directory / "membership.json").chmod(0o600)
    asked = answering(monkeypatch, fresh)
    assert await second.admission.enter() == fresh
    assert len(asked) == len(changes)


OLDER = """{"url": "http://10.0.0.1:8000", "name": "attic", "clock_offset_s": 0.0, "answer": {}}"""


def test_a_membership_of_an_older_version_asks_for_a_new_invite(tmp_path):
    write_private(tmp_path / "membership.json", OLDER)
    with pytest.raises(UserError, match="of an older MoLink: join again with an invite"):
        load_membership(tmp_path)


async def test_a_further_device_asks_anew_when_what_it_kept_is_of_an_older_version(
    tmp_path, monkeypatch
):
    second = agent_with_two_nodes(tmp_path).nodes[1]
    write_private(second.admission.directory / "membership.json", OLDER)
    fresh = membership("attic (2)", second.session.node_id)
    asked = answering(monkeypatch, fresh)
    assert await second.admission.enter() == fresh and len(asked) == 1
