"""Notices go out: a webhook and mail, from a thread of their own."""
