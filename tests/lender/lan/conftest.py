from collections.abc import Iterator

import pytest

from tests.lender.lan.owner import Owner


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    served = Owner()
    yield served
    served.close()
