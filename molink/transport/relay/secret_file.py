"""The secret that a coordinator and its relays share, as a file."""

from pathlib import Path

from molink.errors import UserError

__all__ = ["SECRET_CHARACTERS_MIN", "read_secret"]

SECRET_CHARACTERS_MIN = 32
"""128 bits in hexadecimal: nobody tries them all."""

SECRET_BYTES_MAX = 4096
"""Whatever is longer is some other file."""

HOW = "make one with `openssl rand -hex 32 > FILE`"


def read_secret(file: str) -> bytes:
    """The secret in `file`, without white space around it. Raises UserError when it is none."""
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"Cannot read the secret in {file} ({error.strerror}): {HOW}.") from None
    secret = text.strip()
    if not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise UserError(
            f"{file} holds no secret of {SECRET_CHARACTERS_MIN} to {SECRET_BYTES_MAX} characters: "
            f"{HOW}."
        )
    return secret
