import subprocess
import sys

from molink.bench.truth.others import OthersWatch

SPIN_S = 0.5
SPIN = f"import time\nend = time.process_time() + {SPIN_S}\nwhile time.process_time() < end: pass"


def test_a_program_that_is_not_ours_is_counted():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        watch = OthersWatch.start(server.pid)
        subprocess.run([sys.executable, "-c", SPIN], check=True)
        cores = watch.cores()
        server.kill()
    assert cores > 0.3  # A core, less what starting Python took.
