"""Decisions of the Windows installer, as Python that runs inside the WSL distribution.

PowerShell keeps what must happen before there is a Linux to ask: is this Windows new enough, is
virtualisation on, install WSL. From then on `windows/install.ps1` calls `python3 -m
molink_agent.windows` for every decision and only carries out the answers, because Python can be
tested here and PowerShell cannot.

Nothing in this package imports anything but the standard library and `molink.errors`: it runs with
the distribution's own Python, before MoLink is installed.
"""
