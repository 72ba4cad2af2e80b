"""Tasks that are run and ended together."""

import asyncio
import errno

import pytest

from molink.tasks import (
    LoopErrors,
    Signal,
    background_tasks,
    cancel,
    gathered,
    spawn,
    task_group,
    unless,
)


async def answer(value, after_s=0.0):
    await asyncio.sleep(after_s)
    return value


async def fail(error):
    raise error


async def test_results_come_in_the_order_of_their_coroutines():
    assert await gathered([answer(1, 0.01), answer(2)]) == [1, 2]


async def test_the_first_failure_ends_the_others_and_is_raised_as_it_is():
    ended = []

    async def wait():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(KeyError):
        await gathered([wait(), fail(KeyError("x"))])
    assert ended == [True]
    with pytest.raises(ValueError, match="of the block"):
        async with task_group() as group:
            group.create_task(wait())
            await asyncio.sleep(0)
            raise ValueError("of the block")
    assert ended == [True, True]


async def test_background_tasks_end_with_their_block_or_end_it():
    async with background_tasks() as group:
        waiting = group.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
    assert waiting.cancelled()
    with pytest.raises(KeyError):
        async with background_tasks() as group:
            group.create_task(fail(KeyError("x")))
            await asyncio.sleep(60)


async def test_a_group_that_is_cancelled_stays_cancelled():
    async def run():
        async with task_group() as group:
            group.create_task(asyncio.sleep(60))

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_tasks_have_ended_whatever_they_raise():
    failed = asyncio.create_task(fail(ValueError()))
    waiting = asyncio.create_task(asyncio.sleep(60))
    await cancel(failed, None, waiting)
    assert failed.done() and waiting.cancelled()
    await cancel()


async def test_a_background_task_that_fails_is_logged_and_one_that_is_cancelled_is_not(caplog):
    waiting = spawn(asyncio.sleep(60))
    await cancel(spawn(answer(1)), waiting)
    assert not caplog.records
    failed = spawn(fail(KeyError("lost")))
    await asyncio.wait([failed])
    assert "lost" in caplog.text


async def test_work_is_done_unless_an_event_comes_first():
    event = asyncio.Event()
    assert await unless(event, answer(3)) == 3
    with pytest.raises(KeyError):
        await unless(event, fail(KeyError()))
    asyncio.get_running_loop().call_soon(event.set)
    assert await unless(event, answer(3, 60)) is None


async def test_a_signal_wakes_all_who_wait_for_the_next_change():
    signal = Signal()
    signal.send()
    waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    signal.send()
    await asyncio.gather(*waiting)


async def test_connections_that_cannot_be_accepted_are_logged_seldom(caplog):
    errors, loop = LoopErrors(), asyncio.get_running_loop()
    for _ in range(1000):
        errors(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many files")})
    assert (errors.not_accepted, len(caplog.records)) == (1000, 10)
    errors(loop, {"message": "other", "exception": ValueError("x")})
    assert "other" in caplog.text
