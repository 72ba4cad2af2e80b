"""Services of a user's systemd: unit files, and the programs that manage them."""
