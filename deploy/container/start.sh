#!/bin/sh
# What a container of MoLink runs: `agent` alone is an agent that joins once and then stays a member;
# everything else is a command line of MoLink's.
#
# Options for joining (--device cpu, --memory-gb 16) are put behind `agent`.
set -eu

membership=${XDG_DATA_HOME:?}/molink-agent/membership.json

case ${1:-}:${2:-} in
    agent: | agent:--*)
        shift
        if [ -f "$membership" ]; then
            exec molink agent run
        fi
        if [ -z "${MOLINK_INVITE:-}" ]; then
            echo "start.sh: not a member yet: set MOLINK_INVITE to what \`molink invite\` prints." >&2
            exit 2
        fi
        exec molink agent join "$@"
        ;;
esac
exec molink "$@"
