"""`molink` whose downloads creep: by 1.1 hundredths each 50 s, told every 3 s, for an hour."""

import asyncio
from collections.abc import Callable

from molink.cli.main import main
from molink.control.messages.payloads import AssignedWork
from molink_agent.daemon.membership import Membership
from molink_agent.daemon.stage_launcher import WeightsCache

PER_S = 0.011 / 50
TOLD_S, HOUR_S = 3.0, 3600.0

_get = WeightsCache.get


async def get(
    cache: WeightsCache,
    number: int,
    member: Membership,
    work: AssignedWork,
    report: Callable[[float], None],
) -> str:
    """As the product's, an hour later."""
    for step in range(1, int(HOUR_S / TOLD_S)):
        report(min(0.99, 0.01 + step * TOLD_S * PER_S))
        await asyncio.sleep(TOLD_S)
    return await _get(cache, number, member, work, report)


if __name__ == "__main__":
    WeightsCache.get = get  # type: ignore[method-assign, assignment]
    main()
