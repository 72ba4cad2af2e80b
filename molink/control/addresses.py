"""Addresses of the cluster's servers, and how a client knows them. Values that travel to agents and
into their files."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from molink.errors import UserError

Pem = Annotated[str, Field(max_length=20_000)]
"""Certificates as text: one of ours has 700 characters, an operator's chain a few thousand."""

FIRST_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.S)


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """What a client accepts a server's certificate by.

    Without either, a certificate must be for the host's name and signed by an authority that the
    operating system trusts.
    """

    certificate: Pem = ""
    """The one certificate that is accepted, as PEM, whatever host shows it: a home coordinator
    changes its address."""
    authority: Pem = ""
    """Instead: who signed it, as PEM; it must be for the host's name."""

    def ssl_context(self) -> ssl.SSLContext:
        """What a client checks the server with. Raises ssl.SSLError for what is no certificate."""
        context = ssl.create_default_context(cadata=self.certificate or self.authority or None)
        if self.certificate:
            context.check_hostname = False
            # It is trusted as it is: whoever signed it, perhaps itself, is not.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address of a broker, and how to check its certificate."""

    host: str
    port: int
    tls: ServerTrust | None = None
    """None: it speaks plain MQTT."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """What a client checks the broker with; None without TLS."""
        return None if self.tls is None else self.tls.ssl_context()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Username and password of one client of a broker."""

    username: str
    password: str

    def __repr__(self) -> str:
        """Text without the password, which must not reach a log."""
        return f"Credentials({self.username!r}, ...)"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate and key of a server on this machine, and what agents accept it by."""

    certificate: str
    """Path of a PEM file: the server's certificate first, then those of its authorities."""
    key: str
    """Path of a PEM file; may be the same."""
    trust: ServerTrust = field(default_factory=ServerTrust)

    def chain(self) -> str:
        """The certificates as PEM, and nothing else of the file. Raises UserError when they cannot
        be read."""
        try:
            text = Path(self.certificate).read_text()
        except (OSError, ValueError) as error:
            raise UserError(
                f"The certificate {self.certificate} cannot be read: {error}."
            ) from None
        return "".join(FIRST_CERTIFICATE.findall(text))

    @property
    def pinned(self) -> ServerTrust:
        """What this machine's own clients accept it by: they connect to an address of loopback,
        for which it need not be."""
        found = FIRST_CERTIFICATE.match(self.chain())
        return ServerTrust(certificate=found[0] if found else "")

    def server_context(self) -> ssl.SSLContext:
        """What the server presents itself with. Raises UserError when the files cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise UserError(
                f"The certificate {self.certificate} cannot be used with its key ({error}): give "
                "the two PEM files that belong together."
            ) from None
        return context
