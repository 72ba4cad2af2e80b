"""A broker inside the coordinator's process, for where Mosquitto is not installed.

It keeps its state in memory only. That suffices: every client repeats what it had said when it
comes back, and the coordinator tells nodes what its own database holds.
"""

import hmac
import logging
import resource
import secrets
from pathlib import Path

from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import BrokerError

from molink.control.addresses import BrokerAddress, Credentials, TlsFiles
from molink.control.broker.embedded_repairs import RepairedBroker
from molink.control.broker.permissions import COORDINATOR_NAME, check_username
from molink.errors import UserError

__all__ = ["EmbeddedBroker"]

_CONNECTIONS_MAX = 5000
"""Further ones wait to be let in."""


class EmbeddedBroker:
    """A `Broker` on this event loop."""

    def __init__(self, host: str, port: int, tls: TlsFiles | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._coordinator = Credentials(COORDINATOR_NAME, secrets.token_urlsafe(32))
        self._passwords = {COORDINATOR_NAME: self._coordinator.password}
        self._broker: RepairedBroker | None = None
        for talkative in ("amqtt", "transitions"):
            logging.getLogger(talkative).setLevel(logging.ERROR)

    @property
    def address(self) -> BrokerAddress:
        """Where it listens; the port is known once it has started."""
        ca = Path(self._tls.ca).read_text() if self._tls and self._tls.ca else ""
        return BrokerAddress(self._host, self._port, self._tls is not None, ca)

    @property
    def coordinator(self) -> Credentials:
        """Drawn anew for every start of the coordinator."""
        return self._coordinator

    async def start(self) -> None:
        """Listen. Raises UserError when the address cannot be had."""
        _allow_many_connections()
        broker = RepairedBroker(self._config(), self._knows)
        try:
            await broker.start()
        except BrokerError as error:
            raise UserError(f"The broker cannot listen on {self.address}: {error}.") from None
        self._broker = broker
        self._port = broker.port

    async def stop(self) -> None:
        """End all connections; what was retained is gone."""
        if self._broker is not None:
            broker, self._broker = self._broker, None
            await broker.shutdown()

    async def allow(self, username: str, password: str) -> Credentials:
        """See `Broker.allow`."""
        check_username(username)
        self._passwords[username] = password
        return Credentials(username, password)

    async def forbid(self, username: str) -> None:
        """See `Broker.forbid`."""
        check_username(username)
        self._passwords.pop(username, None)
        if self._broker is not None:
            await self._broker.end_client(username)

    def _knows(self, username: str, password: str) -> bool:
        known = self._passwords.get(username, "")
        return bool(known) and hmac.compare_digest(known.encode(), password.encode())

    def _config(self) -> BrokerConfig:
        """With `plugins`, always: amqtt's own let anybody in."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        listener = ListenerConfig(
            type=ListenerType.TCP,
            bind=f"{host}:{self._port}",
            max_connections=_CONNECTIONS_MAX,
            ssl=self._tls is not None,
            certfile=self._tls.certificate if self._tls else None,
            keyfile=self._tls.key if self._tls else None,
        )
        return BrokerConfig(listeners={"default": listener}, plugins={})


def _allow_many_connections() -> None:
    """A shell's usual 1,024 open files are too few; the kernel lets anybody have more."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _CONNECTIONS_MAX
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), most))
