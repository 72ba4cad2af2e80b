"""Who comes is greeted once, and only so many are answered at a time."""

import asyncio

from molink.control.messages.payloads import Accepted
from molink.coordinator.nodes.newcomers import ANSWERS_AT_ONCE, Newcomers
from molink.coordinator.nodes.node_book import NodeBook
from molink.errors import ErrorGuard
from tests.coordinator.examples import HERE
from tests.coordinator.nodes.test_hub import until


class SlowBroker:
    """Acknowledges nothing until it may."""

    def __init__(self):
        self.greeted, self.may_go_on = [], asyncio.Event()

    async def publish(self, topic, node_id, message):
        if isinstance(message, Accepted):
            self.greeted.append(node_id)
        await self.may_go_on.wait()


async def test_a_thousand_that_come_back_at_once_are_answered_in_turn_and_once():
    broker, book, names = SlowBroker(), NodeBook(), [f"n{number}" for number in range(120)]
    newcomers = Newcomers(broker, book, None, None, ErrorGuard("A step"))
    for name in (*names, *names):
        book.take(name, HERE, 0.0)
        newcomers.add(name)
    answering = asyncio.create_task(newcomers.answer())
    await until(lambda: len(broker.greeted) >= ANSWERS_AT_ONCE)
    await asyncio.sleep(0)
    assert broker.greeted == names[:ANSWERS_AT_ONCE]
    broker.may_go_on.set()
    newcomers.add(names[0])  # Its presence is the same: nothing is said to it again.
    await until(lambda: len(broker.greeted) >= len(names))
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    assert broker.greeted == names
