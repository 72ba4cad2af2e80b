"""One process for each data directory."""

import pytest

from molink.config.data_dir import only_one
from molink.errors import UserError


def test_the_second_is_refused_and_the_next_let_in(tmp_path):
    lock = tmp_path / "new" / "agent.lock"
    with (
        only_one("An agent", lock),
        pytest.raises(UserError) as refused,
        only_one("An agent", lock),
    ):
        pass
    assert str(refused.value).startswith(f"An agent runs with {lock.parent} already")
    with only_one("An agent", lock):
        pass


def test_a_directory_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    lock = tmp_path / "file" / "agent.lock"
    with pytest.raises(UserError, match="cannot be written"), only_one("An agent", lock):
        pass
