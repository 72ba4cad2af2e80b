"""Files that hold secrets: a key pair, the answer to a join; and sockets of one account.

They are replaced as a whole, so that a power cut leaves the old one or the new one, and made so
that only their owner may read them. A file that every user may read is refused rather than
repaired: by then another user may have read it, and only a person knows whether that matters. Its
group may read it, because Kubernetes gives every file of a volume to a group at each mount.
"""

import os
import socket
import stat
import tempfile
from pathlib import Path

from molink.errors import UserError

PRIVATE_BYTES_MAX = 64 * 1024
"""Twenty times what we write; a larger file is not ours."""

OWNER_ONLY = 0o600


def read_private(path: Path, bytes_max: int = PRIVATE_BYTES_MAX) -> str | None:
    """The file's text; None when there is no such file.

    Raises UserError when it cannot be read, is no text or longer than `bytes_max`, or every user
    may read it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its owner.") from None
    if mode & stat.S_IRWXO:
        raise UserError(
            f"{path} holds a secret and every user of this PC may read it: run chmod 600 {path}, "
            "or delete it and join again if somebody may have."
        )
    if len(content) > bytes_max:
        raise UserError(
            f"{path} is longer than {bytes_max} bytes: check what it holds, or move it away."
        )
    try:
        return content.decode()
    except ValueError:
        raise UserError(f"{path} is no text: put back a copy, or move it away.") from None


def write_private(path: Path, text: str) -> None:
    """Replace the file as a whole; its folder is made where there is none.

    Raises UserError when it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            written = Path(directory) / path.name
            _write_durably(written, text)
            written.replace(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): choose another folder or make room."
        ) from None


def private_socket(path: Path) -> socket.socket:
    """A Unix socket in the place of what is there, which nobody else may open from its first
    moment: Linux gives the file that `bind` makes the mode which the socket has by then.

    Raises OSError where none can be made.
    """
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), OWNER_ONLY)
        made.bind(str(path))
    except BaseException:
        made.close()
        raise
    return made


def _write_durably(path: Path, text: str) -> None:
    """Readable for the owner from its first moment, and on the disk before it takes its place."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
