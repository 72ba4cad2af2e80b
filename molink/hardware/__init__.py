"""Hardware and models on paper: devices, which torch suits them, a roofline of step times.

For whoever must say something before anything was measured: the simulator and the forecast of a
placement. Measured profiles are the simulator's.
"""
