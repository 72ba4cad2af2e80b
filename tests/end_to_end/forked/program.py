"""An order to `molink` from its fork server, whose name is the first argument."""

import sys

from tests.end_to_end.forked.asking import stand_for

if __name__ == "__main__":
    stand_for(sys.argv[1], "molink.cli.main", *sys.argv[2:])
