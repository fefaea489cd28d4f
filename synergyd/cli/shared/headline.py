"""The one number for what Synergy has brought: the gain of this month, which page, `status`, `usage` and metrics share."""

from __future__ import annotations

from synergy_core.errors import SynergyError
from synergy_core.usage import Totals
from synergy_core.would_have import WouldHaveTotals

from synergyd.cli.shared.backend import Backend
from synergyd.store.months import present_month


def format_gain(of: Totals | WouldHaveTotals) -> str:
    """Return `+11.2 % ± 0.8`, or `-` if nothing is known of the training."""
    return "-" if of.gain is None else f"{100 * of.gain:+.1f} % ± {100 * of.gain_sigma:.1f}"


def headline(backend: Backend) -> str:
    """Return a line with this month's gain, or what a dry run would have gained; "" if neither is known, or nobody answers."""
    try:
        total = backend.usage(*present_month(), "", "").total
        if total.gain is not None:
            return f"gain this month: {format_gain(total)}, {total.saved_h:+.2f} job hours saved"
        would_have = backend.would_have(*present_month(), "", "").total
    except SynergyError:  # an older service, or one that is busy: the table is worth showing without
        return ""
    if would_have.gain is None:
        return ""
    return f"gain this month, had it acted: {format_gain(would_have)}, {would_have.saved_h:+.2f} job hours saved"
