"""The policies that Synergy is compared with, one per file, and what several of them share. synergyd/settings/policies.py names each."""
