"""A program that ends when we do, whatever ends us.

Run as a script between us and the program: it gives up root if told to, asks the kernel to kill it
when its parent dies, and becomes the program. The kernel forgets that wish when a process changes
its user, so the user is changed first. SIGKILL, because Mosquitto overlooks a SIGTERM that comes
while it starts. (A `preexec_fn` would do it without a script, but runs Python in the forked copy of
a process with threads, which may deadlock.)
"""

import os
import pwd
import sys
from pathlib import Path

__all__ = ["tied"]

_SCRIPT = """
import ctypes, os, resource, signal, sys
parent, uid, gid = (int(word) for word in sys.argv[1:4])
if uid >= 0:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
files = 65536 if most < 0 else min(most, 65536)
resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
os.execv(sys.argv[4], sys.argv[4:])
"""
"""1 is PR_SET_PDEATHSIG; the parent may have died before it was set. A shell's usual 1,024 open
files are too few for a thousand connections; the kernel lets anybody have more."""


def tied(command: list[str], account: pwd.struct_passwd | None = None) -> list[str]:
    """The command line that runs `command` tied to this process, as `account` if that is given."""
    uid, gid = (account.pw_uid, account.pw_gid) if account is not None else (-1, -1)
    words = (str(os.getpid()), str(uid), str(gid))
    return [str(Path(sys.executable)), "-I", "-S", "-c", _SCRIPT, *words, *command]
