"""The Debian packages, built but not installed."""
