"""The words for what replicas exchange, where messages between daemon and job say them (synergyd.exchange)."""

from __future__ import annotations

from synergyd.exchange import EXACT, KINDS, MAX_PERIOD, MAX_RANK, WAYS, Exchange, exchange

__all__ = ["EXACT", "KINDS", "MAX_PERIOD", "MAX_RANK", "WAYS", "Exchange", "exchange"]
