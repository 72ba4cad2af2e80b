"""A stage sends its neighbour's shadow what that lacks, over links as they are."""

import time

import numpy as np
import pytest

from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.stage.sent_log import SentLog
from molink.stage.shadowing import Shadowing
from molink.stage_protocol.messages import FollowRing, JoinRing, SetShadow
from molink.wire.frames import Activations, Forget
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Release, Span
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume

HIDDEN, WITHIN_S = 4, 10.0


@pytest.fixture
def three(tmp_path, monkeypatch):
    """A head, the stage behind it, and the shadow of that one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    links = [
        StageLinks.bind(name, "127.0.0.1", name == "head", lambda fact: None)
        for name in ("head", "stage", "shadow")
    ]
    yield links
    for link in links:
        link._links.close()


def join(links: StageLinks, following: StageLinks | None, epoch: int = 1) -> None:
    terms = RingTerms(64, None, (1,), None)
    if following is None:
        links.connect(FollowRing(epoch, terms))
        return
    address = f"tcp://127.0.0.1:{following.ports[0]}"
    links.connect(JoinRing(epoch, address, None, terms, None, resume=Resume()))


def next_message(links: StageLinks, shadowing: Shadowing | None = None):
    """The next message that comes, while the sender's loop goes on."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        if shadowing is not None:
            shadowing.step()
        links.wait(0.01)
        for message in links.receive():
            return message
    raise AssertionError("nothing has come")


def test_rows_and_releases_reach_the_shadow_which_then_is_the_next_stage(three):
    head, stage, shadow = three
    join(shadow, None)
    join(head, stage)
    packing = Packing(HIDDEN)
    sent = SentLog(packing, "float32", 1e9, 128)
    shadowing = Shadowing(sent, head)
    rows_TD = np.arange(3.0 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN)
    admission = Admission(7, 3, 9, SamplingParams(5))
    batch = Batch(1, PREFILL, -1, (Span(7, 0, 3, samples=True),), (admission,))
    sent.keep(batch, rows_TD, ())
    assert shadowing.lag(0.0) is None
    head.handle(SetShadow(1, f"tcp://127.0.0.1:{shadow.ports[0]}"))
    got = next_message(shadow, shadowing)
    assert isinstance(got, Activations) and got.batch.replay
    assert np.array_equal(packing.unpack(got), rows_TD)
    assert shadowing.lag(time.monotonic()).tokens == 0
    sent.log.forget(7)
    shadowing.forget(7)
    assert next_message(shadow, shadowing) == Forget(Release(7))

    link = head.shadow.link
    join(shadow, stage, epoch=2)
    join(head, shadow, epoch=2)
    assert head._next is link and link.name == "next" and head.shadow.link is None
    head.send_next(Forget(Release(8)), DECODE)
    assert next_message(shadow) == Forget(Release(8))
    shadowing.step()
    assert shadowing.lag(0.0) is None


def test_what_is_of_another_epoch_or_of_no_shadow_opens_no_link(three):
    head, stage, shadow = three
    join(head, stage)
    order = SetShadow(2, f"tcp://127.0.0.1:{shadow.ports[0]}")
    head.handle(order)
    assert head.shadow.link is None
    head.handle(SetShadow(1, order.address))
    assert head.shadow.link is not None
    head.handle(SetShadow(1, None))
    assert head.shadow.link is None
