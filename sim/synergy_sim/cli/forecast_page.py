"""A forecast as one HTML page that needs nothing else: no script, no link, pictures inline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from synergy_sim.cli.forecast_text import assumptions, describe, format_range, format_s
from synergy_sim.forecast.estimate import COVERAGE, Forecast, Range, ShareForecast
from synergyd.jobmodel.speed_up import MEASURED, PRIORS

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}p.lead{font-size:1.15rem}
table{border-collapse:collapse;width:100%}th,td{padding:.35rem .6rem;text-align:right;border-bottom:1px solid #d5dae0}
th:first-child,td:first-child{text-align:left}pre{background:#f3f5f7;padding:.8rem;overflow:auto}
.plots{display:flex;flex-wrap:wrap;gap:1rem}svg{flex:1 1 17rem;height:auto;max-width:100%}
@media(prefers-color-scheme:dark){body{color:#e4e8ec;background:#14181c}pre{background:#1e242a}th,td{border-color:#39424c}svg{color:#e4e8ec}}
"""


def page(forecast: Forecast) -> str:
    """Return the page."""
    shares = forecast.of_prior(MEASURED.name)
    measured = forecast.measured_outcome
    rows = [("none", format_s(measured.wait_s), format_s(measured.completion_s), f"{measured.gpu_h:,.0f}")]
    rows += [
        (
            f"{100 * one.share:.0f} %",
            format_range(one.wait_s),
            format_range(one.completion_s),
            f"{one.gpu_h.middle:,.0f} ({one.gpu_h.low:,.0f}-{one.gpu_h.high:,.0f})",
        )
        for one in shares
    ]
    others = [
        (
            f"{100 * share.share:.0f} %",
            *(
                f"{format_s(one.wait_s.middle)} / {format_s(one.completion_s.middle)}"
                for prior in PRIORS
                for one in forecast.of_prior(prior.name)
                if one.share == share.share
            ),
        )
        for share in shares
    ]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Synergy forecast</title><style>{_STYLE}</style><h1>What Synergy would have changed</h1>",
        f"<p class=lead>{escape(headline(forecast))}</p><pre>{escape(chr(10).join(describe(forecast)).strip())}</pre>",
        f"<h2>With Synergy (in brackets: {100 * COVERAGE:.0f} % intervals)</h2>",
        _table(("take part", "mean wait", "mean completion", "GPU hours held"), rows),
        "<div class=plots>",
        _picture("mean wait", measured.wait_s, [(one, one.wait_s) for one in shares], seconds=True),
        _picture("mean completion", measured.completion_s, [(one, one.completion_s) for one in shares], seconds=True),
        _picture("GPU hours held", measured.gpu_h, [(one, one.gpu_h) for one in shares], seconds=False),
        "</div><h2>If jobs scale otherwise (mean wait / mean completion)</h2>",
        _table(("take part", *(prior.name for prior in PRIORS)), others),
        "<ul>" + "".join(f"<li><b>{escape(p.name)}</b>: {escape(p.text)}" for p in PRIORS) + "</ul>",
        "<h2>Assumptions, and what a history can't say</h2><ul>",
        *(f"<li>{escape(text)}" for text in assumptions(forecast)),
        "</ul></html>\n",
    ]
    return "\n".join(parts)


def headline(forecast: Forecast) -> str:
    """Return the forecast for half of the jobs in one sentence."""
    shares = forecast.of_prior(MEASURED.name)
    half = next(one for one in shares if one.share == median(s.share for s in shares))
    return (
        f"If {100 * half.share:.0f} % of the jobs with several GPUs had taken part, jobs would have waited "
        f"{format_range(half.wait_s)} on average instead of {format_s(forecast.measured_outcome.wait_s)}, and would have been complete "
        f"{format_range(half.completion_s)} after submission instead of {format_s(forecast.measured_outcome.completion_s)}."
    )


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}" for text in row) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _picture(title: str, measured: float, shares: list[tuple[ShareForecast, Range]], *, seconds: bool) -> str:
    """Return a bar for what was measured and one for each share, with its interval."""
    width, height, base, top = 300, 220, 180, 40
    most = max(measured, *(one.high for _, one in shares)) or 1.0
    bars = [("none", Range(measured, measured, measured))] + [(f"{100 * s.share:.0f} %", one) for s, one in shares]
    step = width / len(bars)

    def y(value: float) -> float:
        return base - (base - top) * value / most

    parts = [
        f"<svg viewBox='0 0 {width} {height}' role=img aria-label='{escape(title, quote=True)}' font-size=12 fill=currentColor>"
    ]
    parts.append(f"<text x=0 y=16 font-size=14>{escape(title)}</text>")
    for number, (name, one) in enumerate(bars):
        x = number * step + step / 2
        colour = "#8a949e" if not number else "#2f7ed8"
        text = format_s(one.middle) if seconds else f"{one.middle:,.0f}"
        parts.append(
            f"<rect x={x - step / 4:.1f} y={y(one.middle):.1f} width={step / 2:.1f} height={base - y(one.middle):.1f} fill='{colour}'/>"
        )
        if number:
            parts.append(
                f"<line x1={x:.1f} x2={x:.1f} y1={y(one.low):.1f} y2={y(one.high):.1f} stroke=currentColor stroke-width=2 />"
            )
        parts.append(f"<text x={x:.1f} y={y(one.high) - 4:.1f} text-anchor=middle>{escape(text)}</text>")
        parts.append(f"<text x={x:.1f} y={base + 18} text-anchor=middle>{escape(name)}</text>")
    parts.append(f"<line x1=0 x2={width} y1={base} y2={base} stroke=currentColor /></svg>")
    return "".join(parts)
