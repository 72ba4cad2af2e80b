"""A head that never begins one request in three, and does for all others what it should."""

from itertools import count

from molink.stage.loop import StageLoop
from molink.stage.stage_process import main
from molink.wire.frames import Message, Submit

EVERY = 3

_take, _numbers = StageLoop._take, count(1)


def take(loop: StageLoop, message: Message) -> None:
    """As the product's, but for every third request."""
    if not (isinstance(message, Submit) and next(_numbers) % EVERY == 0):
        _take(loop, message)


if __name__ == "__main__":
    StageLoop._take = take  # type: ignore[method-assign, assignment]
    main()
