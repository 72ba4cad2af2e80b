"""Asks the home's router to let neighbours in, as long as the agent runs. Nothing depends on it.

Routers answer slowly, wrongly or never, and the libraries that ask them block; so each question is
asked in a thread of its own that is left behind when it takes too long, and whatever goes wrong is
a sentence for the owner, no exception. Leases are short and renewed, so that an agent that was
killed leaves no open port for long.
"""

import asyncio
import ipaddress
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from molink_agent.network.gateway import Gateway, NatPmpGateway, UpnpGateway

PORTS_MAX = 48
"""The peer service and two ports of a stage, for each of sixteen devices."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MappingPeriods:
    """Time limits of a port mapper."""

    answer_s: float = 8.0
    """Seconds for a question: miniupnpc searches for two and then asks each device found."""
    lease_s: int = 3600
    renew_s: float = 1500.0
    """Two renewals fit into a lease. Also how soon a router that had none is asked again."""
    removal_s: float = 3.0
    """Seconds to remove all mappings at the end: the owner waits for the agent to stop."""


class PortMapper:
    """Keeps some ports of this PC mapped at the router while `run` runs."""

    def __init__(
        self,
        gateways: Sequence[Callable[[], Gateway]] = (UpnpGateway, NatPmpGateway),
        periods: MappingPeriods = MappingPeriods(),
    ) -> None:
        """`gateways` are tried in this order; the first that has a public address is kept."""
        self._gateways, self._periods = gateways, periods
        self._gateway: Gateway | None = None
        self._wanted: dict[str, tuple[int, ...]] = {}
        """Ports by the listener at them."""
        self._held: set[int] = set()
        """Ports that are mapped at the gateway."""
        self._wanted_changed = asyncio.Event()
        self._asking = False
        """Whether a question has no answer yet; perhaps nobody waits for it any more."""
        self.mapped: dict[int, str] = {}
        """Addresses at the router as host:port, by this PC's port."""
        self.trouble = "the router has not been asked yet"
        """Why ports are not mapped, for the owner; empty when they are."""
        self.changed = asyncio.Event()
        """Event that is set when `mapped` has changed; the reader clears it."""

    def want(self, listener: str, ports: Iterable[int]) -> None:
        """All the ports of one listener that shall be mapped from now on."""
        self._wanted[listener] = tuple(ports)
        self._wanted_changed.set()

    async def run(self) -> None:
        """Keep the ports mapped until cancelled; then remove the mappings."""
        try:
            while True:
                await self._renew()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._periods.renew_s):
                        await self._wanted_changed.wait()
                self._wanted_changed.clear()
        finally:
            with suppress(OSError):
                async with asyncio.timeout(self._periods.removal_s):
                    await self._remove(set(self._held))

    async def _renew(self) -> None:
        """Bring the router to what is wanted."""
        before = dict(self.mapped)
        wanted = sorted({port for ports in self._wanted.values() for port in ports})[:PORTS_MAX]
        try:
            public = await self._find()
            await self._remove(self._held - set(wanted))
            for port in wanted:
                await self._map(port, public)
            self.trouble = ""
        except OSError as error:
            self.trouble = str(error) or "the router takes too long to answer"
            self.mapped.clear()
        if self.mapped != before:
            self.changed.set()

    async def _find(self) -> str:
        """The router and its public address. Raises OSError when there is none of use."""
        troubles = []
        known = [] if self._gateway is None else [self._gateway]
        for gateway in (*known, *(make() for make in self._gateways)):
            try:
                public = await self._ask_in_thread(gateway.discover)
                _check_public(public)
            except OSError as error:
                troubles.append(str(error) or "no answer in time")
            else:
                self._gateway = gateway
                return public
        self._gateway = None
        raise OSError("; ".join(dict.fromkeys(troubles)) or "no kind of router is to be asked")

    async def _map(self, port: int, public: str) -> None:
        assert self._gateway is not None
        outside = await self._ask_in_thread(self._gateway.map, port, self._periods.lease_s)
        self._held.add(port)
        self.mapped[port] = f"{public}:{outside}"

    async def _remove(self, ports: Iterable[int]) -> None:
        for port in sorted(ports):
            self._held.discard(port)
            self.mapped.pop(port, None)
            if self._gateway is not None:
                with suppress(OSError):
                    await self._ask_in_thread(self._gateway.unmap, port)

    async def _ask_in_thread(self, ask: Callable[..., Result], *arguments: Any) -> Result:
        """Result of a call in a daemon thread, because the loop's own pool would be waited for at
        exit. Raises OSError, TimeoutError among them, and nothing else. As long as an older
        question has no answer, no new question is asked.
        """
        if self._asking:
            raise TimeoutError("the router has not answered an older question")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def deliver(set_it: Callable[[Any], None], value: Any) -> None:
            self._asking = False
            if not answer.done():
                set_it(value)

        def work() -> None:
            try:
                outcome: tuple[Callable[[Any], None], Any] = (answer.set_result, ask(*arguments))
            except Exception as error:
                outcome = (answer.set_exception, _as_os_error(error))
            with suppress(RuntimeError):  # The loop may be gone.
                loop.call_soon_threadsafe(deliver, *outcome)

        self._asking = True
        threading.Thread(target=work, name="router", daemon=True).start()
        async with asyncio.timeout(self._periods.answer_s):
            return await answer


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"the router: {error}")


def _check_public(address: str) -> None:
    """Raise OSError for an address that leads nowhere from outside."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        raise OSError(f"the router says that its address is {address!r}") from None
    if not known.is_global:
        raise OSError(
            f"the router's own address {address} is private: there is another router behind it"
        )
