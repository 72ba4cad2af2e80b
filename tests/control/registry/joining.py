"""Who asks to be let in, and what with."""

from molink.control.identity import KeyPair
from molink.control.messages.joining import JoinRequest, request_to_join

NOW = 1.7e9
HOUR_S = 3600.0
URL = "https://10.0.0.1:8003"


def key(number: int) -> bytes:
    return KeyPair.of_secret(number.to_bytes(32, "big")).public


def request(invite=None, name="pc") -> JoinRequest:
    return request_to_join(invite, name, "0.1", 0.0)


def make(registry, uses=5, name="", expires_s=HOUR_S):
    return registry.make_invite(expires_s, uses, name, NOW)
