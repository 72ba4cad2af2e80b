"""The coordinator's certificate: its own, made at the first start, or the operator's.

Its own is what a home needs: no name, no authority, nothing to renew. Agents are told it in the
sealed answer to their join and accept no other, so it is worth as much as the coordinator's key. It
signs nothing but itself, holds for ever, and is good at any address. A pin of the key alone was
rejected: Python's TLS checks certificates, and one that never changes needs no second way.

What users are shown is another one: their programs compare the names in it, which may change.
"""

import ipaddress
import ssl
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from molink.control.addresses import ServerTrust, TlsFiles
from molink.control.private_file import read_private, write_private
from molink.errors import UserError

FILE_NAME, API_FILE_NAME = "tls.pem", "api-tls.pem"
"""In the data directory: certificate and key together, so that a power cut cannot part them."""

SUBJECT = "MoLink coordinator"
NOT_BEFORE, NOT_AFTER = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""For ever: PCs whose clock has lost the year shall join, and nobody renews anything at home."""

_HANDSHAKE_TURNS = 10
"""Most turns of a handshake whose two ends are in one process; TLS 1.3 takes three."""


def own_certificate(data_dir: Path) -> TlsFiles:
    """The coordinator's own certificate, made on first use.

    Raises UserError when its file cannot be read or written, may be read by everybody, or is
    damaged.
    """
    path = data_dir / FILE_NAME
    if read_private(path) is None:
        write_private(path, _new_certificate())
    files = TlsFiles(str(path), str(path))
    try:
        files.server_context()
    except UserError:
        raise UserError(
            f"{path} is damaged: put back a copy, or delete it; the PCs then ask for the new one."
        ) from None
    return TlsFiles(str(path), str(path), files.pinned)


def api_certificate(data_dir: Path, names: Collection[str]) -> TlsFiles:
    """A certificate for the users' API at these names and addresses, made on first use and again
    when a name is new. Raises UserError when its file cannot be read or written, or is damaged."""
    path = data_dir / API_FILE_NAME
    files = TlsFiles(str(path), str(path))
    wanted = {known for name in names if (known := _general_name(name)) is not None}
    if read_private(path) is None or not wanted <= _names_in(files):
        write_private(path, _new_certificate(wanted))
    return files


def first_end(chain: str) -> datetime | None:
    """When the first of these certificates ends; None of a text (PEM) that holds none."""
    try:
        found = x509.load_pem_x509_certificates(chain.encode())
    except ValueError:
        return None
    return min(one.not_valid_after_utc for one in found)


def _general_name(name: str) -> x509.GeneralName | None:
    """The host as certificates hold it; None for a name that is none there."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name) if name.isascii() else None


def _names_in(files: TlsFiles) -> set[x509.GeneralName]:
    try:
        extensions = x509.load_pem_x509_certificate(files.chain().encode()).extensions
    except ValueError:
        raise UserError(f"{files.certificate} is damaged: delete it, another is made.") from None
    return set(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def operators_certificate(certificate: str, key: str, ca: str, host: str) -> TlsFiles:
    """A certificate that the operator gave, for agents that connect to `host`.

    `ca` is the path of who signed it; empty: somebody whom every operating system trusts. Raises
    UserError when files cannot be used, or when agents would refuse the certificate.
    """
    try:
        authority = Path(ca).read_text() if ca else ""
    except (OSError, ValueError) as error:
        raise UserError(f"--tls-ca {ca} cannot be read: {error}.") from None
    files = TlsFiles(certificate, key, ServerTrust(authority=authority))
    try:
        _try_handshake(files.trust.ssl_context(), files.server_context(), host)
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"Agents would refuse the certificate of --tls-cert at {host} "
            f"({error.verify_message}): check --public-host and --tls-ca, or leave --tls-cert out: "
            "the coordinator has a certificate of its own."
        ) from None
    except ssl.SSLError as error:
        raise UserError(
            f"--tls-ca {ca} holds no certificates ({error.reason}): give a PEM file."
        ) from None
    return files


def _new_certificate(names: Collection[x509.GeneralName] = ()) -> str:
    """Certificate and key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SUBJECT)])
    public = key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (certificate.public_bytes(serialization.Encoding.PEM) + secret).decode()


def _try_handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Connect both in memory. Raises ssl.SSLCertVerificationError when the client refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server, server_hostname=host)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_HANDSHAKE_TURNS):
        for end in (asks, answers):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if end is asks:
                return
    raise AssertionError("a handshake ends or fails")
