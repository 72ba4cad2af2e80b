"""The process that times a layer: it is seen and waited for, its fork computes."""

import os
import sys

from tests.end_to_end.forked.asking import ADDRESS, stand_for

if __name__ == "__main__":
    stand_for(os.environ[ADDRESS], "molink.engine.probes.step_probe", *sys.argv[1:])
