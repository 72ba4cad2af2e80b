#!/bin/sh
# Whether what this container runs is alive: an agent answers on its socket, a coordinator on its
# port. A coordinator without enough nodes answers 503 and is alive all the same.
set -eu

MAIN=${MOLINK_MAIN_PROCESS:-/proc/1/cmdline}
# tini keeps process 1 and repeats on its command line what start.sh was given.

words=$(tr '\0' '\n' <"$MAIN")
if printf '%s\n' "$words" | grep -qx agent; then
    exec molink agent status --json >/dev/null
fi
port=$(printf '%s\n' "$words" | sed -n '/^--port$/{n;p;q;}')
exec python3 - "${port:-8000}" <<'END'
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()
END
