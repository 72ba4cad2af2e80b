"""How to reach a broker, and as whom. Values that travel to agents and into their files."""

import ssl
from dataclasses import dataclass

__all__ = ["BrokerAddress", "Credentials", "TlsFiles"]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address of a broker, and how to check its certificate."""

    host: str
    port: int
    tls: bool = False
    ca: str = ""
    """Who signs for the broker, as PEM text; empty: whom the operating system trusts."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """What a client checks the broker with; None without TLS.

        A certificate that was handed over by name of its signer is bound to this broker already,
        and a home coordinator changes its address: then the host name is not compared.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context(cadata=self.ca or None)
        context.check_hostname = not self.ca
        return context

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Username and password of one client of a broker."""

    username: str
    password: str

    def __repr__(self) -> str:
        """Without the password, which must not reach a log."""
        return f"Credentials({self.username!r}, ...)"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files on the broker's machine that the coordinator can read."""

    certificate: str
    key: str
    ca: str = ""
    """Who signed the certificate, for clients to check: the certificate itself when it is
    self-signed; empty: an authority that every operating system trusts."""
