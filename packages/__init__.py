"""Packages without debhelper: `python -m packages.deb`, `python -m packages.rpm`."""
