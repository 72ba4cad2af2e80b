"""The two kinds of broker that the same tests run over: ours, and a Mosquitto of an operator."""

from pathlib import Path

from molink.control.addresses import BrokerAddress, Credentials, TlsFiles
from molink.control.broker.broker import Broker
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.broker.permissions import COORDINATOR_NAME
from tests.end_to_end.clusters import free_ports
from tests.mosquitto import Mosquitto, installed_mosquitto

KINDS = ("mosquitto", "embedded")


class OperatorsMosquitto:
    """Mosquitto whose operator lets in and removes nodes by hand; its coordinator sees all."""

    def __init__(self, folder: Path, tls: TlsFiles | None = None):
        self.coordinator = Credentials(COORDINATOR_NAME, "an-operators-password")
        self.trust = None if tls is None else tls.trust
        self._mosquitto = Mosquitto(
            *(installed_mosquitto(), folder, *free_ports(1)),
            user=self.coordinator.username,
            password=self.coordinator.password,
            tls=tls,
            readable="#",
        )

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress("127.0.0.1", self._mosquitto.port, self.trust)

    async def start(self):
        self._mosquitto.start()

    async def stop(self):
        self._mosquitto.stop()

    async def allow(self, username: str, password: str) -> Credentials:
        self._mosquitto.nodes[username] = password
        self._take_users()
        return Credentials(username, password)

    async def forbid(self, username: str):
        self._mosquitto.nodes.pop(username, None)
        self._take_users()

    def _take_users(self):
        if self._mosquitto.process is not None:
            self._mosquitto.take_users()


def broker_of(kind: str, folder: Path, tls: TlsFiles | None = None) -> Broker:
    """One of a kind, not yet started."""
    if kind == "mosquitto":
        return OperatorsMosquitto(folder, tls)
    return EmbeddedBroker("127.0.0.1", 0, tls)
