"""One ring as the coordinator has it: its stages, its links, and the requests that it computes."""
