"""Debian packages without debhelper: `python -m deb.build`."""
