"""The real half of `molink sim compare`: a scenario's requests, asked of real processes.

What a scenario file says (`scenario_file`), the requests that it stands for (`loads`) and what
they come to (`figures`) is plain data: the simulator imports these, so that both halves see
the same. `live`, run as `python -m molink.bench.validation`, starts the processes.
"""
