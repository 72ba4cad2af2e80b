"""Everything that leaves a process looks as it did: on wires, pipes and topics, in files.

Nodes of other versions, files of earlier starts and scripts of users read these bytes. A failure
here means that one of them would not understand us any more, whatever the types are called now.
"""

import pytest

from tests.golden.codecs import CODECS
from tests.golden.record import RECORDED, recorded

VALUES = [
    pytest.param(codec, name, id=f"{codec.name}-{name}")
    for codec in CODECS
    for name in codec.builders
]
GOLDEN = {codec.name: recorded(codec) for codec in CODECS}


@pytest.mark.parametrize(("codec", "name"), [one for one in VALUES if one.values[0].comparable])
def test_it_is_written_as_recorded(codec, name):
    assert codec.encode(codec.builders[name]()) == GOLDEN[codec.name][name]


@pytest.mark.parametrize(("codec", "name"), [one for one in VALUES if one.values[0].decode])
def test_what_was_recorded_is_still_read(codec, name):
    assert codec.decode(GOLDEN[codec.name][name]) == codec.builders[name]()


def test_every_recorded_encoding_has_a_value():
    for codec in CODECS:
        assert set(GOLDEN[codec.name]) == set(codec.builders), codec.name
    assert {path.stem for path in RECORDED.iterdir()} == {codec.name for codec in CODECS}
