"""Profiles, decisions, epochs and job stories in SQLite or PostgreSQL."""
