"""Certificates of coordinators: their own, and those of operators with an authority."""

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Operators:
    """Paths of PEM files, as an operator gives them."""

    certificate: str
    key: str
    ca: str


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _signed(subject: str, issuer: str, public, by, extension) -> bytes:
    builder = x509.CertificateBuilder(_name(issuer), _name(subject), public, 1, FROM, UNTIL)
    certificate = builder.add_extension(extension, critical=True).sign(by, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Authority:
    """Somebody who signs certificates for hosts."""

    folder: Path
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        one = cls(folder, ec.generate_private_key(ec.SECP256R1()))
        may_sign = x509.BasicConstraints(ca=True, path_length=None)
        folder.mkdir(exist_ok=True)
        pem = _signed("authority", "authority", one.key.public_key(), one.key, may_sign)
        (folder / "ca.pem").write_bytes(pem)
        return one

    def sign_for(self, host: str) -> Operators:
        """A certificate for an IP address or a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        pem = _signed(
            host, "authority", key.public_key(), self.key, x509.SubjectAlternativeName([name])
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (self.folder / f"{host}.pem").write_bytes(pem)
        (self.folder / f"{host}.key").write_bytes(secret)
        return Operators(
            *(str(self.folder / name) for name in (f"{host}.pem", f"{host}.key", "ca.pem"))
        )
