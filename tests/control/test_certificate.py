"""Which certificate a client accepts: exactly the coordinator's own, or an operator's for its
host."""

import ssl
from pathlib import Path

import pytest

from molink.control.addresses import ServerTrust, TlsFiles
from molink.control.certificate import (
    _try_handshake,
    api_certificate,
    operators_certificate,
    own_certificate,
)
from molink.errors import UserError
from tests.certificates import Authority


def accepts(trust: ServerTrust, files: TlsFiles, host: str = "10.0.0.1") -> bool:
    try:
        _try_handshake(trust.ssl_context(), files.server_context(), host)
    except ssl.SSLCertVerificationError:
        return False
    return True


def test_the_own_certificate_is_made_once_and_private(tmp_path):
    first = own_certificate(tmp_path)
    assert own_certificate(tmp_path) == first
    (made,) = tmp_path.iterdir()
    assert made.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" in made.read_text() and "PRIVATE" not in first.trust.certificate


def test_the_own_certificate_is_accepted_at_any_address_and_no_other_is(tmp_path):
    own, other = own_certificate(tmp_path / "own"), own_certificate(tmp_path / "other")
    for host in ("10.0.0.1", "attic.local"):
        assert accepts(own.trust, own, host)
        assert not accepts(own.trust, other, host) and not accepts(ServerTrust(), own, host)


def test_a_pinned_certificate_is_not_any_of_the_same_authority(tmp_path):
    authority = Authority.make(tmp_path)
    one, other = (authority.sign_for(host) for host in ("10.0.0.1", "10.0.0.2"))
    files, others = (TlsFiles(each.certificate, each.key) for each in (one, other))
    assert accepts(files.pinned, files) and not accepts(files.pinned, others)


def test_an_operators_certificate_is_accepted_for_its_host_only(tmp_path):
    authority = Authority.make(tmp_path)
    one, other = (authority.sign_for(host) for host in ("10.0.0.1", "ring.example.org"))
    files = operators_certificate(one.certificate, one.key, one.ca, "10.0.0.1")
    others = TlsFiles(other.certificate, other.key)
    assert accepts(files.trust, files)
    assert not accepts(files.trust, others), "the same authority has signed it, for another host"
    assert accepts(files.trust, others, "ring.example.org")


def test_a_certificate_that_agents_would_refuse_is_refused_at_the_start(tmp_path):
    one = Authority.make(tmp_path).sign_for("10.0.0.1")
    with pytest.raises(UserError, match=r"Agents would refuse .* at 10.0.0.2 .*--public-host"):
        operators_certificate(one.certificate, one.key, one.ca, "10.0.0.2")
    with pytest.raises(UserError, match="Agents would refuse"):
        operators_certificate(one.certificate, one.key, "", "10.0.0.1")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"certificate": "none"}, "cannot be used with its key"),
        ({"key": "ca.pem"}, "cannot be used with its key"),
        ({"ca": "none"}, "--tls-ca .* cannot be read"),
        ({"ca": "10.0.0.1.key"}, "holds no certificates"),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence(tmp_path, changes, sentence):
    one = Authority.make(tmp_path).sign_for("10.0.0.1")
    given = {"certificate": one.certificate, "key": one.key, "ca": one.ca}
    given |= {name: str(tmp_path / file) for name, file in changes.items()}
    with pytest.raises(UserError, match=sentence):
        operators_certificate(**given, host="10.0.0.1")


def test_a_damaged_or_open_file_is_refused(tmp_path):
    own_certificate(tmp_path)
    path = tmp_path / "tls.pem"
    path.chmod(0o644)
    with pytest.raises(UserError, match="every user of this PC may read it"):
        own_certificate(tmp_path)
    path.write_text("nothing")
    path.chmod(0o600)
    with pytest.raises(UserError, match="is damaged: put back a copy"):
        own_certificate(tmp_path)


def test_users_are_shown_a_certificate_for_the_names_that_they_use(tmp_path):
    own_certificate(tmp_path)
    names = {"ring.example.org", "192.168.1.20", "::1", "straße.example"}
    files = api_certificate(tmp_path, names)
    assert Path(files.certificate).stat().st_mode & 0o777 == 0o600
    trust = ServerTrust(authority=files.chain())
    for host in ("ring.example.org", "192.168.1.20", "::1"):
        assert accepts(trust, files, host)
    assert not accepts(trust, files, "other.example.org") and not accepts(ServerTrust(), files)
    before = Path(files.certificate).read_bytes()
    assert api_certificate(tmp_path, {"192.168.1.20"}) == files
    assert Path(files.certificate).read_bytes() == before, "who trusts it need not do so again"
    api_certificate(tmp_path, names | {"new.example.org"})
    assert Path(files.certificate).read_bytes() != before
    assert accepts(ServerTrust(authority=files.chain()), files, "new.example.org")


def test_a_damaged_certificate_for_users_says_what_to_do(tmp_path):
    files = api_certificate(tmp_path, {"localhost"})
    path = Path(files.certificate)
    path.write_text(path.read_text()[:200])
    with pytest.raises(UserError, match="is damaged: delete it"):
        api_certificate(tmp_path, {"localhost"})
