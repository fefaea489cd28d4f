"""`synergyctl forecast`: from a file of sacct's, or sacct itself, to tables, a page and a picture."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from synergy_sim.cli import forecast as forecast_module
from synergy_sim.cli.forecast import _FORMAT, forecast_verb
from synergy_sim.cli.forecast_text import format_range, format_s
from synergy_sim.forecast.estimate import Range
from synergy_sim.forecast.history import COLUMNS

BEGIN_S = 1_764_000_000
SACCT = f"SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-30days {_FORMAT} > history.txt"
SINFO = "sinfo -N -h -o '%N|%G' > nodes.txt"


def write_history(path: Path, jobs: int = 60, gpus: int = 8) -> Path:
    """Each job of an hour has the whole node; one comes each 50 minutes."""
    lines = ["|".join(COLUMNS)]
    for i in range(jobs):
        ready_s, start_s = BEGIN_S + 3000 * i, BEGIN_S + 3600 * i
        tres = f"billing=8,gres/gpu:a100={gpus},gres/gpu={gpus}"
        lines.append(f"{i}|ann|{ready_s}|{ready_s}|{start_s}|3600|120|{tres}|1|n1|COMPLETED")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(forecast_verb, [str(a) for a in arguments])


def test_the_tables_fit_80_columns_and_say_what_they_rest_on(tmp_path: Path) -> None:
    done = run("--history", str(write_history(tmp_path / "history.txt")))
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    text = " ".join(done.output.split())
    assert "60 jobs with GPUs of 1 user," in text
    assert "8 GPUs: 1 x 8 a100 (from the nodes that ran these jobs)" in text
    assert "mean wait 4.9 h, mean completion 5.9 h" in text  # 59 x 600 s / 2
    for share in ("20 %", "50 %", "100 %"):
        assert sum(line.startswith(f"{share} ") for line in done.output.splitlines()) == 2
    assert "POOR: poor speed-ups" in text
    assert "give --nodes" in text


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    history = str(write_history(tmp_path / "history.txt"))
    first, again, other = (
        json.loads(run("--history", history, "--seed", seed, "--json", "-").output) for seed in ("1", "1", "2")
    )
    assert first == again
    assert first["forecasts"] != other["forecasts"]
    assert first["measured"]["wait_s"] == 17_700.0
    assert first["multi_gpu_jobs"] == 60
    assert len(first["forecasts"]) == 9


def test_several_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    history = str(write_history(tmp_path / "history.txt"))
    alone = json.loads(run("--history", history, "--json", "-").output)
    monkeypatch.setattr(forecast_module, "PARALLEL_FROM", 1)
    assert json.loads(run("--history", history, "--json", "-").output) == alone


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else_and_shows_each_share(tmp_path: Path) -> None:
    page = tmp_path / "forecast.html"
    history = write_history(tmp_path / "history.txt")
    history.write_text(history.read_text().replace("a100", "<b>"))
    assert run("--history", str(history), "--html", str(page)).exit_code == 0
    tags = Tags()
    tags.feed(page.read_text())
    names = [tag for tag, _ in tags.seen]
    assert names.count("svg") == 3
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert not any("src" in attributes or "href" in attributes for _, attributes in tags.seen)
    assert names.count("b") == 3  # the priors' names: a GPU type is text
    assert "take part" in page.read_text()


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "forecast.png"
    assert run("--history", str(write_history(tmp_path / "history.txt")), "--plot", str(picture)).exit_code == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("JobID|Submit\n", "no column JobIDRaw"),
        ("|".join(COLUMNS) + "\n", "AccountingStorageTRES=gres/gpu"),
        ("|".join(COLUMNS) + "\n1|ann|1|1|1|10|1|gres/gpu=1|1|n1|COMPLETED\n", "no job has more than one GPU"),
        ("|".join(COLUMNS) + "\n1|ann|1|1|1|10|1|gres/gpu=2|1|n1|RUNNING\n", "no job with GPUs became ready and ended"),
    ],
)
def test_a_history_without_jobs_to_forecast_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "history.txt"
    path.write_text(content)
    done = run("--history", str(path))
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.splitlines()) == 1


def test_a_file_that_is_not_there_and_nodes_alone(tmp_path: Path) -> None:
    assert "can't be read" in run("--history", str(tmp_path / "none")).output
    assert "--history is not given" in run("--nodes", str(tmp_path / "none")).output


def fake(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_sacct_and_sinfo_are_run_where_no_file_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = write_history(tmp_path / "history.txt")
    fake(tmp_path, "sacct", f'echo "$SLURM_TIME_FORMAT $*" > {tmp_path}/called; cat {history}')
    fake(tmp_path, "sinfo", "echo 'n1|gpu:a100:8'; echo 'n2|gpu:a100:8'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = run()
    assert done.exit_code == 0, done.output
    assert "16 GPUs: 2 x 8 a100 (from sinfo)" in done.output
    called = (tmp_path / "called").read_text()
    assert called.startswith("%s -a -D -X -P ")
    assert ",".join(COLUMNS) in called


def test_without_slurm_it_says_what_to_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "sacct", "echo 'sacct: error: Slurm accounting storage is disabled' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path) + ":/usr/bin:/bin")
    done = run()
    assert done.exit_code == 1
    assert "accounting storage is disabled" in done.output
    assert "synergyctl forecast --help" in done.output and done.output.count("\n") == 1
    assert "Traceback" not in done.output


def test_the_help_shows_the_export_word_by_word() -> None:
    text = re.sub(r"(\s|\\\n)+", " ", run("--help").output)
    assert SACCT in text
    assert SINFO in text


def test_times_and_ranges_have_one_unit() -> None:
    assert [format_s(s) for s in (90, 3000, 14_760)] == ["90 s", "50 min", "4.1 h"]
    assert format_range(Range(16.0, 0.0, 1200.0)) == "0 min (0-20)"
    assert format_range(Range(14_760.0, 11_520.0, 18_000.0)) == "4.1 h (3.2-5.0)"
