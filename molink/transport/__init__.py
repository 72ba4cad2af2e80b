"""Transport of bytes: ZeroMQ links between processes, and the emulator that makes loopback a home
link."""
