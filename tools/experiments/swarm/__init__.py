"""A broker, a swarm of made-up agents, and a coordinator that watches them."""
