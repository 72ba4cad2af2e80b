"""A registry in a folder of its own."""

import pytest

from molink.control.registry.registry import Registry
from tests.control.registry.joining import URL


@pytest.fixture
def registry(tmp_path):
    registry = Registry.open(tmp_path)
    registry.url = URL
    yield registry
    registry.close()
