"""A certificate that signs itself."""

import subprocess
from pathlib import Path

from molink.control.broker.broker import TlsFiles


def self_signed(folder: Path) -> TlsFiles:
    """For a host name that is not 127.0.0.1."""
    files = TlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"), str(folder / "cert.pem"))
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    where = ["-subj", "/CN=coordinator", "-keyout", files.key, "-out", files.certificate]
    subprocess.run([*words.split(), *where], check=True, capture_output=True)
    return files
