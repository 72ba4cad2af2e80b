"""A stage's process: it is seen, killed and waited for, its fork computes."""

import os
import sys

from tests.end_to_end.forked.asking import ADDRESS, stand_for

if __name__ == "__main__":
    stand_for(os.environ[ADDRESS], "molink.stage.stage_process", *sys.argv[1:])
