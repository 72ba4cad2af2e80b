"""Who may join: keys, sealed requests, invites; and the coordinator's own files."""

import base64
import json
import tempfile
from contextlib import closing
from pathlib import Path

from nacl.public import Box, PrivateKey, PublicKey

from molink.control.addresses import ServerTrust
from molink.control.identity import KeyPair, load_or_make_key
from molink.control.messages.invites import Invite, InviteSecret
from molink.control.messages.joining import JoinAnswer, JoinRequest, Voucher
from molink.control.messages.sealing import open_sealed, seal
from molink.control.private_file import write_private
from molink.control.registry.database import MIGRATIONS
from molink.control.registry.registry import Registry
from molink.control.sqlite_file import open_database
from molink.errors import ControlError
from tests.golden.codec import Codec
from tests.golden.fixed_random import fixed_random, numbered
from tests.golden.values_control import KEY, NODE, OTHER, OTHER_KEY, SIZE

# -- keys -----------------------------------------------------------------------------------------

PAIR = KeyPair.of_secret(bytes(range(32)))
COORDINATOR_PAIR = KeyPair.of_secret(bytes(range(100, 132)))

KEYS = Codec("control-keys", lambda pair: f"{pair.node_id} {pair.public_z85} {pair.secret_z85}")
KEYS.add(
    of_a_secret=lambda: PAIR,
    of_its_first_seat=lambda: PAIR.for_device(0),
    of_its_second_seat=lambda: PAIR.for_device(1),
    of_its_last_seat=lambda: PAIR.for_device(15),
)


def key_file(pair: KeyPair) -> str:
    """As it is made on first use."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "keys" / "identity.json"
        with fixed_random():
            made = load_or_make_key(path)
        assert path.stat().st_mode & 0o777 == 0o600
        text = path.read_text()
    for old, new in ((made.public_z85, pair.public_z85), (made.secret_z85, pair.secret_z85)):
        text = text.replace(json.dumps(old), json.dumps(new))
    return text


def read_key_file(text: str) -> KeyPair:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "identity.json"
        write_private(path, text)
        return load_or_make_key(path)


KEY_FILES = Codec("control-key-files", key_file, read_key_file)
KEY_FILES.add(identity=lambda: PAIR, identity_with_escapes=lambda: COORDINATOR_PAIR)

# -- joining --------------------------------------------------------------------------------------


def sealed(message) -> str:
    sender, receiver = ends_of(message)
    with fixed_random():
        return seal(message, sender, receiver.public).decode()


def opened(line: str):
    try:
        return open_sealed(line.encode(), COORDINATOR_PAIR, JoinRequest, Voucher)[0]
    except ControlError:
        return open_sealed(line.encode(), PAIR, JoinAnswer)[0]


def ends_of(message) -> tuple[KeyPair, KeyPair]:
    ends = (PAIR, COORDINATOR_PAIR)
    return ends[::-1] if isinstance(message, JoinAnswer) else ends


def plain(message) -> str:
    """What is inside, opened with PyNaCl alone."""
    fields = json.loads(sealed(message))
    assert list(fields) == ["key", "nonce", "sealed"]
    sender, receiver = ends_of(message)
    box = Box(PrivateKey(receiver.secret), PublicKey(sender.public))
    closed, nonce = (base64.b64decode(fields[name]) for name in ("sealed", "nonce"))
    return box.decrypt(closed, nonce).decode()


PLAIN = Codec("control-sealed-content", plain)
SEALED = Codec("control-sealed", sealed, opened)


PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def request_with_an_invite():
    return JoinRequest(
        challenge="0123456789abcdef" * 2,
        invite_id="0123456789abcdef",
        invite_secret="fedcba9876543210" * 2,
        name="Annas PC – Küche",
        version="0.1.0",
        time_unix_s=1_700_000_000.125,
    )


def request_again():
    return JoinRequest(challenge="0" * 32, name="x", version="", time_unix_s=0)


def request_of_a_further_device():
    return JoinRequest(challenge="f" * 32, name="attic (2)", version="0.1.0", time_unix_s=1e11)


def voucher():
    return Voucher(request="sealed")


def answer_shortest():
    return JoinAnswer(
        challenge="0" * 32,
        node_id=NODE,
        broker_port=1,
        broker_tls=None,
        agents_tls=ServerTrust(),
        username=NODE,
        password="p",
        weights_token="t" * 16,
        time_unix_s=0.0,
        coordinator_public_key=KEY,
    )


def answer_with_everything():
    return JoinAnswer(
        challenge="0123456789abcdef" * 2,
        node_id=OTHER,
        broker_host="broker.example.org",
        broker_port=65_535,
        broker_tls=ServerTrust(authority=PEM),
        agents_tls=ServerTrust(certificate=PEM),
        username="user",
        password="pässword",
        weights_token="t" * 43,
        time_unix_s=1_700_000_000.125,
        coordinator_public_key=OTHER_KEY,
        model=SIZE,
    )


for codec in (PLAIN, SEALED):
    codec.add(
        request_with_an_invite=request_with_an_invite,
        request_again=request_again,
        request_of_a_further_device=request_of_a_further_device,
        voucher=voucher,
        answer_shortest=answer_shortest,
        answer_with_everything=answer_with_everything,
    )

INVITES = Codec("control-invites", lambda invite: invite.text, Invite.parse)


def invite_to(url: str, secret: bytes = bytes(range(16))) -> Invite:
    return Invite(url, "00112233445566ff", InviteSecret(secret), COORDINATOR_PAIR.public)


INVITES.add(
    to_an_address=lambda: invite_to("https://10.0.0.1:8003"),
    to_a_name_with_a_path=lambda: invite_to("https://ring.example.org/a/b~c%20d"),
    to_an_ipv6_address=lambda: invite_to("https://[2001:db8::1]:65535"),
    to_the_longest=lambda: invite_to("https://" + "a" * 192, b"\xff" * 16),
)
SECRETS = Codec("control-invite-digests", lambda invite: invite.secret.digest.hex())
SECRETS.add(kept_of_a_secret=lambda: invite_to("https://a"))

# -- the coordinator's files ----------------------------------------------------------------------


def schema(connection) -> str:
    rows = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    lines = [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join([f"user_version {version}", *lines])


def registry_schema(make) -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "registry.db"
        make(path)
        with closing(open_database(path, MIGRATIONS)) as connection:
            return schema(connection)


SCHEMAS = Codec("control-registry-schema", registry_schema)


@SCHEMAS.value
def new_registry():
    return lambda path: None


@SCHEMAS.value
def registry_of_the_first_version():
    return lambda path: open_database(path, MIGRATIONS[:1]).close()


COORDINATOR_SECRET = COORDINATOR_PAIR.secret.hex()


ID_OF_AN_INVITE, DIGEST, TOKEN = (
    r"(?<=')[0-9a-f]{16}(?=')",
    r"(?<=X')[0-9A-F]{64}(?=')",
    r"(?<=')[A-Za-z0-9_-]{32}(?=')",
)


def registry_content(settings: dict[str, str]) -> str:
    """All rows, after everything that writes has written."""
    with tempfile.TemporaryDirectory() as directory, fixed_random():
        registry = Registry.open(Path(directory))
        for name, value in settings.items():
            registry.set_setting(name, value)
        assert registry.coordinator == COORDINATOR_PAIR
        registry.url, registry.api_url = "https://10.0.0.1:8003/", "http://10.0.0.1:8000"
        registry.next_revision()
        invite = registry.make_invite(3600.0, 3, "lan party", 1000.0)
        revoked = registry.make_invite(60.0, 1, "", 1000.5)
        registry.revoke(revoked.invite_id, 1001.0)
        request = request_again().model_copy(
            update={"invite_id": invite.invite_id, "invite_secret": invite.secret.value.hex()}
        )
        registry.admit(PAIR.public, request, 1002.0)
        further = request_again().model_copy(update={"name": "x (2)"})
        registry.admit(PAIR.for_device(1).public, further, 1003.0, PAIR.public)
        gone = request.model_copy(update={"name": "gone"})
        registry.admit(COORDINATOR_PAIR.public, gone, 1004.0)
        registry.remove_node("gone", 1005.0)
        lines = [
            line
            for line in registry._connection.iterdump()
            if line.startswith("INSERT INTO") and "sqlite_" not in line
        ]
        registry.close()
    content = "\n".join(lines)
    for drawn in ID_OF_AN_INVITE, DIGEST, TOKEN:
        content = numbered(content, drawn)
    return content


def read_registry(lines: str):
    """The settings that were there to begin with, of a registry that holds all of it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "registry.db"
        with closing(open_database(path, MIGRATIONS)) as connection:
            connection.executescript(lines)
        registry = Registry.open(Path(directory), make=False)
        assert registry.coordinator == COORDINATOR_PAIR
        assert registry.url == "https://10.0.0.1:8003"
        assert registry.next_revision() == 1001
        (party, other) = registry.list_invites()
        assert (party.state(1000.0), party.uses_left, other.revoked) == ("usable", 1, 1001.0)
        pc, further, gone = registry.list_nodes()
        assert (pc.node_id, pc.pc) == (PAIR.node_id, PAIR.node_id)
        assert (further.node_id, further.pc) == (PAIR.for_device(1).node_id, PAIR.node_id)
        assert gone.removed == 1005.0
        assert registry.pc_of_token(further.weights_token) == pc.node_id
        settings = {COORDINATOR_SETTING: registry.setting(COORDINATOR_SETTING)}
        registry.close()
    return settings


COORDINATOR_SETTING = "coordinator_secret_key"

REGISTRIES = Codec("control-registry-rows", registry_content, read_registry)
REGISTRIES.add(everything=lambda: {COORDINATOR_SETTING: COORDINATOR_SECRET})


CODECS = (
    KEYS,
    KEY_FILES,
    PLAIN,
    SEALED,
    INVITES,
    SECRETS,
    SCHEMAS,
    REGISTRIES,
)
