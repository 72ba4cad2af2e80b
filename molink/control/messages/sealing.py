"""Messages that only one key can open and only another can have written, as JSON.

    {"key": sender's public key in Z85, "nonce": base64, "sealed": base64}

PyNaCl's Box over the same curve25519 keys that the links use. A Box is symmetric: what A sealed for
B could be handed back to A as if B had written it. Therefore the kind of the message is sealed in,
and only the expected kind is taken. A time stamp against repetition was rejected, because clocks of
home PCs are off by hours: an answer carries its request's challenge instead, and a repeated request
does what it did before.
"""

import base64
import json
from collections.abc import Sequence
from typing import Annotated, TypeVar

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from pydantic import BaseModel, Field, ValidationError

from molink.control.identity import KeyPair, key_from_z85
from molink.control.messages.base import Key
from molink.control.messages.base import Message as PlainMessage
from molink.errors import ControlError

SEALED_BYTES_MAX = 64 * 1024
"""A join takes 1 KB, a broker's certificate 2 to 20; compared before anything is parsed."""

Kind = TypeVar("Kind", bound=BaseModel)


class _Sealed(PlainMessage):
    key: Key
    nonce: Annotated[str, Field(min_length=32, max_length=32)]
    sealed: Annotated[str, Field(min_length=24, max_length=SEALED_BYTES_MAX)]


def seal(message: BaseModel, sender: KeyPair, receiver_public: bytes) -> bytes:
    """The message as JSON that only the owner of `receiver_public` (32 bytes) can open.

    Raises ControlError when that is no key.
    """
    plain = {"kind": type(message).__name__, "message": message.model_dump(mode="json")}
    try:
        box = Box(PrivateKey(sender.secret), PublicKey(receiver_public))
        closed = box.encrypt(json.dumps(plain).encode())
    except (CryptoError, TypeError, ValueError):
        raise ControlError("The receiver's key is no key: ask for a new invite.") from None
    fields = _Sealed(
        key=sender.public_z85, nonce=_base64(closed.nonce), sealed=_base64(closed.ciphertext)
    )
    return fields.model_dump_json().encode()


def open_sealed(data: bytes, own: KeyPair, *kinds: type[Kind]) -> tuple[Kind, bytes]:
    """The message, of one of these kinds, and the public key of whoever sealed it for us.

    Raises ControlError when it is too large, not sealed, not for us, altered, or of another kind.
    """
    fields = _fields(data)
    sender = _sender(fields)
    try:
        box = Box(PrivateKey(own.secret), PublicKey(sender))
        plain = box.decrypt(_bytes(fields.sealed), _bytes(fields.nonce))
    except (CryptoError, TypeError, ValueError):
        raise ControlError(
            "A sealed message cannot be opened: it was altered, or is meant for another key."
        ) from None
    return _message(plain, kinds), sender


def open_answer(data: bytes, own: KeyPair, kind: type[Kind], sender_public: bytes) -> Kind:
    """The message, which must be sealed by `sender_public`. Raises ControlError as above."""
    message, sender = open_sealed(data, own, kind)
    if sender != sender_public:
        raise ControlError("Somebody else than the coordinator answered: check its address.")
    return message


def _fields(data: bytes) -> _Sealed:
    if len(data) > SEALED_BYTES_MAX:
        raise ControlError(f"A sealed message has over {SEALED_BYTES_MAX} bytes: it is refused.")
    try:
        return _Sealed.model_validate_json(data)
    except ValidationError:
        raise ControlError(
            "This is no sealed message: check the address of the other side."
        ) from None


def _sender(fields: _Sealed) -> bytes:
    try:
        return key_from_z85(fields.key)
    except ValueError:
        raise ControlError("A sealed message names no key of its sender: update MoLink.") from None


def _message(plain: bytes, kinds: Sequence[type[Kind]]) -> Kind:
    try:
        content = json.loads(plain)
        for kind in kinds:
            if content["kind"] == kind.__name__:
                return kind.model_validate(content["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ControlError(
        f"A sealed message is not the {kinds[0].__name__} that was expected: update the older side."
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
