"""The live driver: processes, sockets and the clock around the pure core."""
