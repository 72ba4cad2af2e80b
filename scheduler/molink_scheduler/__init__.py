"""The core: every decision of the ring, and nothing else.

No sockets, no clock, no torch. It takes what happened and answers what to do, so that the live
runtime and the simulator run the same code.
"""
