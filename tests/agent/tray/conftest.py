"""Tests of the icon need no desktop."""

import os

os.environ["PYSTRAY_BACKEND"] = "dummy"
