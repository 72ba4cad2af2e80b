"""Process that speaks the lines of what lends to a LAN, and holds nothing.

`python -m tests.agent.daemon.lan_server_double --bind HOST --port 0 --threads N`: a lease counts as
held at once; one of 13 bytes ends the process.
"""

import json
import os
import sys


def main() -> None:
    print(json.dumps({"port": 4000 + int(sys.argv[-1]), "incarnation": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("bytes") == 13:
            return
        lease = order.get("allow", order.get("revoke"))
        state, size = ("held", order["bytes"]) if "allow" in order else ("ended", 0)
        print(json.dumps({"lease": lease, "state": state, "bytes": size}), flush=True)


if __name__ == "__main__":
    main()
