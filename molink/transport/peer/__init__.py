"""Peer service that every node offers its neighbours besides its stage: to be measured, within
limits."""
