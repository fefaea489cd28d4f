"""`scontrol show config` as a dict."""

from __future__ import annotations


def config_values(text: str) -> dict[str, str]:
    """Return the values by key. Each key=value ends at the first `=`; no value has white space at its ends that matters."""
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in text.splitlines())}
