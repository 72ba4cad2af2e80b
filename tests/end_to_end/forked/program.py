"""A program from a fork server: the server's name, the program's module and its arguments."""

import sys

from tests.end_to_end.forked.asking import stand_for

if __name__ == "__main__":
    stand_for(*sys.argv[1:])
