"""Writes the pages that come from the code: docs/reference/, docs/man/, docs/pictures/, and the blocks between `generated` marks.

    python docs/generate.py            write what is stale
    python docs/generate.py --check    write nothing; exit with 1 and name each stale file

Texts that the code does not hold stand in docs/descriptions.toml: a name without a text, or a text without a name, is an error.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launch"), str(ROOT / "sim"), str(ROOT / "sql")]

from _commands import cli_page, man_pages, settings_man_page  # noqa: E402
from _overviews import epoch, overview  # noqa: E402
from _pictures import chart_of_table  # noqa: E402
from _resize_picture import picture  # noqa: E402

WARNING = "<!-- Written by docs/generate.py: edit the code (or docs/descriptions.toml), not this page. -->\n"
DESCRIPTIONS: dict[str, dict[str, Any]] = tomllib.loads((DOCS / "descriptions.toml").read_text())
ENVIRONMENT_NAME = re.compile(r"SYNERGY_[A-Z_]+\Z")


class StaleTextError(Exception):
    """docs/descriptions.toml and the code name different things."""


def described(names: Iterable[str], texts: dict[str, Any], section: str) -> dict[str, str]:
    """Return the text of each name, in the order of `names`. Raises StaleTextError."""
    wanted = list(dict.fromkeys(names))
    missing, stale = [n for n in wanted if n not in texts], [n for n in texts if n not in wanted]
    if missing or stale:
        what = [f"no text for {', '.join(missing)}"] * bool(missing) + [f"{', '.join(stale)} is gone"] * bool(stale)
        raise StaleTextError(f"docs/descriptions.toml [{section}]: {'; '.join(what)}")
    return {name: texts[name] for name in wanted}


def listing(rows: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown list of terms, each with its text behind a colon, or alone if it has none."""
    return "".join(f"- {term}: {text}\n" if text else f"- {term}\n" for term, text in rows)


def page(title: str, *parts: str) -> str:
    """Return one generated page."""
    return f"{WARNING}# {title}\n\n" + "\n\n".join(part.strip() for part in parts) + "\n"


# -- settings ------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    from synergyd.settings.text import settings_markdown

    text = re.sub(r"docs/([\w/-]+)\.md", r"[\1](../\1.md)", settings_markdown().partition("\n\n")[2])
    return page("Settings", text, "How to choose them: [Settings](../admin/settings.md).")


def escape(text: str) -> str:
    """Escape prose from the code, where `*`, `_` and `<` mean themselves."""
    return re.sub(r"([*_<])", r"\\\1", text)


# -- directive, environment, metrics -------------------------------------------------------------------------------


def directive_page() -> str:
    from synergyd.slurm.directives.grammar import KEYS, MAX_LINE, MAX_STAMP

    keys = [key for key in KEYS if key.kind != "retired"]
    texts = described((key.name for key in keys), DESCRIPTIONS["directive"], "directive")
    rows = (
        (
            f"`{key.name}=`",
            f"{texts[key.name]} Takes {key.takes()}." + (f" Default: {key.default}." if key.default else ""),
        )
        for key in keys
    )
    return page(
        "Directive",
        "Lines `#SYNERGY key=value ...` in the comment block at the top of a batch script. One line or several; each key once. "
        "Quotes, `'` or `\"`, hold blanks. Shell variables are not expanded.",
        listing(rows),
        f"A line holds at most {MAX_LINE} bytes, all keys together at most {MAX_STAMP} characters in AdminComment. "
        "sbatch refuses a wrong line. How to use it: [Directive](../user/directive.md).",
    )


@functools.cache
def environment_names() -> set[str]:
    """Return every SYNERGY_ name that is a string of its own somewhere in the product, so that the code reads or sets it."""
    found = set()
    for folder in ("launch", "synergyd", "sim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and ENVIRONMENT_NAME.match(node.value)
                ):
                    found.add(node.value)
    return found


def environment_page() -> str:
    texts = described(sorted(environment_names()), DESCRIPTIONS["environment"], "environment")
    internal = ", ".join(f"`{name}`" for name, text in texts.items() if text.startswith("Internal. "))
    groups: dict[str, list[tuple[str, str]]] = {"Yours to set": [], "Set by the launcher": [], "Others": []}
    for name, text in texts.items():
        if text.startswith("Internal. "):
            continue
        group = next((group for group in groups if text.startswith(f"{group}. ")), "Others")
        groups[group].append((f"`{name}`", text.removeprefix(f"{group}. ")))
    return page(
        "Environment variables",
        *(f"## {group}\n\n{listing(rows)}" for group, rows in groups.items()),
        f"Between Synergy's own processes (docs/descriptions.toml describes each): {internal}.",
        "Synergy also follows `SLURM_CONF` (which slurm.conf), `MUNGE_SOCKET` (which munged) and, with PostgreSQL, `PGPASSFILE`.",
    )


def metrics_page() -> str:
    from prometheus_client.metrics import MetricWrapperBase

    from synergyd.daemon.metrics import PrometheusMetrics

    found: list[MetricWrapperBase] = []
    metrics = PrometheusMetrics(0)
    for value in (*vars(metrics).values(), *vars(metrics._job_metrics).values()):
        members = value.values() if isinstance(value, dict) else (value,)
        found += [member for member in members if isinstance(member, MetricWrapperBase)]
    rows = []
    for metric in found:
        about = next(iter(metric.describe()))
        name = about.name + ("_total" if about.type == "counter" else "")
        labels = f" by {', '.join(metric._labelnames)}" if metric._labelnames else ""
        rows.append((f"`{name}` ({about.type}{labels})", about.documentation))
    return page(
        "Metrics",
        "With `MetricsPort` set, the daemon serves these to Prometheus at `http://HOST:PORT/metrics`. "
        "[Metrics](../admin/metrics.md) says which to watch.",
        listing(sorted(rows)),
    )


# -- JSON and wire protocols ---------------------------------------------------------------------------------------


def fields_list(record: type) -> str:
    """Return the fields of a dataclass with their types and texts; those whose names say all stand together in the first line."""
    from synergyd.views.json_records import field_docs

    texts = field_docs(record)
    typed = {f.name: f"`{f.name}` (`{f.type}`)" for f in dataclasses.fields(record)}
    plain = ", ".join(each for name, each in typed.items() if name not in texts)
    return (f"- {plain}\n" if plain else "") + listing((typed[name], texts[name]) for name in typed if name in texts)


def summary(record: type) -> str:
    """Return the first paragraph of a record's docstring."""
    return prose(" ".join((inspect.getdoc(record) or "").partition("\n\n")[0].split()))


def json_page() -> str:
    from synergyd.views.json_records import json_reference

    return page("JSON output", json_reference())


def sbatch_page() -> str:
    """Return the page of sbatch's options, from docs/sbatch-options.toml. Raise StaleTextError for a row that makes no sense."""
    outcomes = {
        "same": ("same", "as for a plain job, at each size"),
        "size": ("size", "chosen by Synergy"),
        "kept": ("size kept", "the job keeps its size, and sbatch says so"),
        "rewritten": ("rewritten", "asked for in an equivalent way"),
        "sbatch": ("sbatch only", "handled before there is a job"),
        "refused": ("refused", "see the remark"),
    }
    plain: dict[str, list[str]] = {}
    rows = []
    for name, row in tomllib.loads((DOCS / "sbatch-options.toml").read_text()).items():
        if row.get("at", "same") not in outcomes or row.keys() - {"try", "alone", "at", "scales", "text"}:
            raise StaleTextError(f"docs/sbatch-options.toml [{name}]: unknown key or outcome")
        outcome = row.get("at", "same")
        if row.get("text"):
            rows.append((f"`--{name}` ({outcomes[outcome][0]})", row["text"]))
        else:
            plain.setdefault(outcome, []).append(f"`--{name}`")
    text = (
        "How a `#SYNERGY` line changes each option of sbatch (the manual page of 22.05). "
        "A test submits each to a real cluster, with and without the line."
    )
    groups = "\n".join(
        f"- **{short}**: {meaning}" + (f": {', '.join(plain[outcome])}" if outcome in plain else "")
        for outcome, (short, meaning) in outcomes.items()
    )
    return page("Options of sbatch", text, groups, "Remarks:", listing(rows))


def wire_page() -> str:
    from synergy_core.wire import admin_comment, codec, job_key, line, link_protocol, munge, plan, plan_file, report

    parts = []
    for title, module, record in (
        ("AdminComment", admin_comment, None),
        ("Plan file", plan_file, plan_file.PlanFile),
        ("Plan", plan, None),
        ("Reports", report, report.ReportAnswer),
        ("Lines", line, None),
        ("Link arbiter", link_protocol, link_protocol.Hello),
        ("munge credentials", munge, None),
        ("Signatures without munge", job_key, None),
        ("Encoding", codec, None),
    ):
        parts.append(f"## {title}\n\n{prose(inspect.getdoc(module) or '')}")
        if record is not None:
            parts.append(f"### {record.__name__}\n\n{summary(record)}\n\n{fields_list(record)}")
    return page(
        "Wire protocols",
        "The messages between the daemon and a job. The code is in `launch/synergy_core/wire/`, with one encoder and one decoder "
        "for each. A report's payload is a [`Report`](json.md#report) as a JSON object, the plan in a plan file a [`Plan`](json.md#plan).",
        *parts,
    )


def prose(text: str) -> str:
    """Return a docstring as Markdown: tables and indented blocks stay, `*` and `_` of other lines are escaped outside of backticks."""
    lines = []
    for line in text.splitlines():
        parts = line.split("`")
        plain = line.startswith(("|", "    "))
        lines.append(line if plain else "`".join(p if i % 2 else escape(p) for i, p in enumerate(parts)))
    return "\n".join(lines)


def stages_list() -> str:
    """Return the stages of a decision by phase, from the tuples that `decide` runs through."""
    from synergyd.scheduler.decide import PHASES

    parts = (
        f"**{phase.capitalize()}**\n\n{listing((f'`{stage.name}`', stage.text) for stage in stages)}"
        for phase, stages in PHASES.items()
    )
    return "\n".join(parts)


def maturity_list() -> str:
    """Return the features by mark, from the table that `synergyctl config check` reads."""
    from synergyd.settings.maturity import FEATURES, MEANINGS

    parts = (
        f"## {mark.capitalize()}\n\n{meaning[0].upper()}{meaning[1:]}.\n\n"
        + listing((f.name[0].upper() + f.name[1:], "") for f in FEATURES if f.mark is mark)
        for mark, meaning in MEANINGS.items()
    )
    return "\n".join(parts)


# -- writing -------------------------------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Return every generated file with what it should hold."""
    reference = DOCS / "reference"
    made = {
        reference / "cli.md": cli_page(WARNING),
        reference / "settings.md": settings_page(),
        reference / "directive.md": directive_page(),
        reference / "environment.md": environment_page(),
        reference / "metrics.md": metrics_page(),
        reference / "json.md": json_page(),
        reference / "wire.md": wire_page(),
        reference / "sbatch.md": sbatch_page(),
    }
    made |= {DOCS / "man" / name: text for name, text in man_pages().items()}
    made[DOCS / "man/synergy.conf.5"] = settings_man_page()
    blocks = {
        (DOCS / "admin/maturity.md", "maturity"): maturity_list(),
        (DOCS / "concepts/epoch.md", "stages"): stages_list(),
    }
    for (path, name), text in blocks.items():
        made[path] = with_block(made.get(path) or path.read_text(), name, text, path)
    return made | pictures()


# Marks of tables in docs/benchmarks.md, with the titles of the charts that are drawn of them.
CHARTS = {
    "traces": "Mean job completion time on Pollux's traces, seconds",
    "parts": "Average completion time of each part, % of first in, first out",
    "replay": "Mean job completion time, real cluster and simulator, seconds",
}


def pictures() -> dict[Path, str]:
    """Return every generated picture with what it should hold. Raise StaleTextError for a chart without its table."""
    folder, benchmarks = DOCS / "pictures", (DOCS / "benchmarks.md").read_text()
    made = {folder / "overview.svg": overview(), folder / "epoch.svg": epoch(), folder / "resize.svg": picture()}
    for mark, title in CHARTS.items():
        try:
            made[folder / f"{mark}.svg"] = chart_of_table(benchmarks, mark, title)
        except ValueError as error:
            raise StaleTextError(f"docs/benchmarks.md: {error}") from None
    return made


def with_block(text: str, name: str, block: str, path: Path) -> str:
    """Return `text` with what stands between the marks of `name` replaced. Raises StaleTextError where there are none."""
    begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
    before, mark, rest = text.partition(begin)
    _, close, after = rest.partition(end)
    if not mark or not close:
        raise StaleTextError(f"{path.relative_to(ROOT)}: no marks {begin.strip()} and {end}")
    return f"{before}{begin}\n{block.strip()}\n\n{close}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if a page is stale")
    check = parser.parse_args(argv).check
    try:
        made = pages()
    except StaleTextError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'is stale: run python docs/generate.py' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
