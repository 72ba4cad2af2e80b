"""A few hundred mutated models, the same each time; `tests.fuzz.model_files` makes a hundred
thousand."""

import pytest

from molink.importing.checkpoint_folder import NewTensors, _files
from tests.end_to_end.command_line import torch_program
from tests.fuzz import model_files
from tests.fuzz.model_files import MEMORY_BYTES, SECONDS_MAX, SUBJECTS, look_in_child, write_seeds

INPUTS = 60
"""Of each subject."""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    write_seeds(folder)
    return folder


@pytest.fixture(scope="module")
def program():
    return torch_program(model_files.__name__)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_model_takes_all_memory_or_ends_in_a_traceback(subject, seeds, program):
    figures = look_in_child(subject, 0, INPUTS, seeds, program)
    assert figures.found == [] and figures.inputs == INPUTS
    assert 0 < figures.taken < INPUTS, "good models and bad ones"
    assert figures.longest_s <= SECONDS_MAX and figures.memory_mib < MEMORY_BYTES / 2**20


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("import-gguf", 3997),  # An array as the number of a token.
        ("plan-folder", 8572),  # An index that names a file by 300 letters.
        ("plan-folder", 14366),  # A tensor that is larger than any number of bytes.
        ("plan-folder", 16795),
        ("import-folder", 347),  # Sizes that no float holds.
    ],
)
def test_what_was_found_once(subject, number, seeds, program):
    assert look_in_child(subject, number, 1, seeds, program).found == []


class Counted(list):
    """Entries that count how often they are gone through."""

    times = 0

    def __iter__(self):
        Counted.times += 1
        return super().__iter__()


def test_files_of_many_tensors_are_dealt_out_in_one_pass():
    """A table of 65,536 small tensors would take the square of that."""
    tensors = [NewTensors(Counted(), lambda: iter(())) for _ in range(500)]
    assert [len(parts) for parts in _files(tensors)] == [500]
    assert Counted.times <= 4 * len(tensors)
