"""Feed of the next stage's shadow: rows that it lacks, sent between a stage's own steps.

What to send is the feed's to say, and whether the line has time for it the link's. The loop asks
after each step and, while the shadow lacks something, a hundred times a second.
"""

import math
import time
from dataclasses import dataclass, field

from molink.stage.links import StageLinks
from molink.stage.sent_log import SentLog
from molink.stage_protocol.progress import ShadowLag
from molink.transport.link.paced_link import PacedLink
from molink.wire.frames import Activations, Forget
from molink_scheduler.batch import Release
from molink_scheduler.stage.shadow_feed import ShadowBatch, ShadowFeed

LOOK_AGAIN_S = 0.01
"""Period of an idle stage's looks, while its link has something of the shadow's to send."""


@dataclass(slots=True)
class Shadowing:
    """Sender of what the next stage's shadow lacks."""

    sent: SentLog
    links: StageLinks
    _feed: ShadowFeed = field(init=False)
    _link: PacedLink | None = field(init=False, default=None)
    """Link of the shadow that the feed is for."""

    def __post_init__(self) -> None:
        self._feed = ShadowFeed(self.sent.log, self.sent.rows_max)

    def forget(self, request_id: int) -> None:
        """A request was forgotten here; the shadow is to forget it too."""
        self._feed.release(request_id)

    def step(self) -> float:
        """Send the next rows, if the line has time for them; after how long to call again if
        nothing happens before."""
        shadow = self.links.shadow
        if (link := shadow.link) is not self._link:
            self._link = link
            self._feed.restart()
        if link is None or not link.is_open:
            return math.inf
        if not (bytes_max := shadow.room_bytes()):
            return LOOK_AGAIN_S
        following = self._feed.next(self.sent.codec, bytes_max, time.monotonic())
        if following is None:
            return math.inf
        shadow.send(self._message(following))
        return LOOK_AGAIN_S

    def lag(self, now: float) -> ShadowLag | None:
        """How far the next stage's shadow is behind; None: it has none."""
        if self._link is None:
            return None
        return ShadowLag(self._feed.behind_tokens(), round(self._feed.behind_s(now), 3))

    def _message(self, following: Release | ShadowBatch) -> Activations | Forget:
        if isinstance(following, Release):
            return Forget(following)
        batch, sent = following
        return self.sent.message(batch, sent)
