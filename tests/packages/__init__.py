"""The Debian packages in a fresh Debian: make test-deb."""
