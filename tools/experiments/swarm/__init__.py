"""A swarm of made-up agents, and a broker for it to join when there is no coordinator."""
