"""The agent as a service of its owner's account: started at logon, again after a crash, not root's.

A systemd *user* unit was chosen over a system unit because nothing that the agent does needs root,
and a volunteer should not have to give it. The price is that it runs only while the user is logged
in, unless lingering is switched on, and `install_service` says how.
"""
