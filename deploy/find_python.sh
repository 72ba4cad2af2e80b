#!/bin/sh
# Prints the first of the given Pythons that is new enough for MoLink and can make a virtual
# environment; else says in one sentence how to get one, and ends with 2. For make, whose first step
# it is: pip's own complaint about an old Python names packages, and not Python.
#
#   sh deploy/find_python.sh GOAL PYTHON...
set -u

goal=$1
shift
first=''

for candidate in "$@"; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    found=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            command -v "$candidate"
            exit 0
        fi
        : "${first:=Python $found ($(command -v "$candidate")) has no venv module}"
    fi
    : "${first:=this is $found ($(command -v "$candidate"))}"
done

wanted=python3.12
if command -v apt-get >/dev/null 2>&1; then
    [ -z "$(apt-cache search '^python3.11-venv$' 2>/dev/null)" ] || wanted=python3.11
    how="sudo apt install $wanted $wanted-venv"
elif command -v dnf >/dev/null 2>&1; then
    how="sudo dnf install $wanted"
elif command -v pacman >/dev/null 2>&1; then
    how="sudo pacman -S python" wanted=python3
else
    how="install it with your system's package manager"
fi
echo "MoLink needs Python 3.11 or newer; ${first:-there is none here}: $how," \
    "then make $goal PYTHON=$wanted" >&2
exit 2
