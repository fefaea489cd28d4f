"""Processes forked from one that has made its imports: what a script sees must be what it sees when Python is started with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synergy_launch.launcher.before_run import environment_at_import
from synergy_launch.warm_start import server
from synergy_launch.warm_start.client import ForkedProcess, WaitingProcess
from synergy_launch.warm_start.starter import AFTER_S, Starter

LOOK = """\
import atexit, json, os, random, signal, sys
atexit.register(print, "at the end")
class Thing: pass
print(json.dumps(dict(
    argv=sys.argv, first=sys.path[0], name=__name__, file=globals().get("__file__"), names=sorted({*globals()} - {"__annotations__"}),
    parent=os.getppid(), session=os.getsid(0) == os.getpid(), environment=dict(os.environ),
    main=sys.modules["__main__"].Thing is Thing, usr2=signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN,
    term=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, future=eval("lambda x: 1").__annotations__,
)))
print(random.random(), "random")
sys.stderr.write("an error\\n")
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture(scope="module")
def waiting() -> Iterator[WaitingProcess]:
    process = WaitingProcess.launch(("decimal", "no_such_module"), os.environ)
    assert process is not None and process.is_ready(60)
    yield process
    process.close()


def run(process: WaitingProcess, *arguments: str, session: bool = False, **more: str) -> tuple[int, str, str]:
    child = process.start(
        (sys.executable, *arguments), {**os.environ, **more}, output=True, errors=True, new_session=session
    )
    assert child is not None and child.stdout is not None and child.stderr is not None
    with child.stdout, child.stderr:
        output, errors = child.stdout.read().decode(), child.stderr.read().decode()
    return child.wait(30), output, errors


def seen(output: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(output.splitlines()[0])
    return line


def test_a_script_sees_what_it_sees_under_a_python_of_its_own(waiting: WaitingProcess, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    code, output, errors = run(waiting, "-u", str(script), "a", "b c", CODE="3", NEW="1")
    environment = {**os.environ, "CODE": "3", "NEW": "1"}
    plain = subprocess.run(
        [sys.executable, "-u", str(script), "a", "b c"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    )
    assert (code, errors) == (plain.returncode, plain.stderr) == (3, "an error\n")
    assert seen(output) == seen(plain.stdout)
    assert seen(output)["parent"] == os.getpid()
    assert output.splitlines()[-1] == "at the end"


def test_a_module_too(tmp_path: Path) -> None:
    package = tmp_path / "warm_look"
    package.mkdir()
    (package / "__main__.py").write_text(LOOK)
    there = {"PYTHONPATH": str(tmp_path)}
    process = WaitingProcess.launch((), {**os.environ, **there})
    assert process is not None and process.is_ready(60)
    _, output, _ = run(process, "-u", "-m", "warm_look", "x", PYTHONPATH=str(tmp_path))
    process.close()
    plain = subprocess.run(
        [sys.executable, "-u", "-m", "warm_look", "x"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **there},
        preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    )
    assert seen(output) == seen(plain.stdout)


def test_nobody_waits_where_pythons_start_is_customised(tmp_path: Path) -> None:
    """A site's own code may look at RANK, and put things in the place of modules before they are imported."""
    (tmp_path / "sitecustomize.py").write_text("import os\n")
    process = WaitingProcess.launch((), {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process is not None
    try:
        assert not process.is_ready(60)
    finally:
        process.close()


def test_ends_are_told_as_of_any_child(waiting: WaitingProcess, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise KeyError('lost')\n")
    code, _, errors = run(waiting, str(script))
    assert (code, errors.splitlines()[-1]) == (1, "KeyError: 'lost'")
    script.write_text("def f(:\n")
    code, _, errors = run(waiting, str(script))
    assert code == 1 and "SyntaxError" in errors and str(script) in errors
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run(waiting, str(script))[0] == -signal.SIGKILL


def test_signals_reach_it_and_its_session(waiting: WaitingProcess, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    child = waiting.start((sys.executable, str(script)), os.environ, output=True, new_session=True)
    assert child is not None and child.stdout is not None
    assert child.stdout.readline() == b"runs\n" and child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(30) == -signal.SIGTERM == child.returncode
    child.terminate()  # it has gone: nobody else is signalled
    child.stdout.close()


def test_each_has_random_numbers_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    process = WaitingProcess.launch(("random", "numpy"), {**os.environ, "OMP_NUM_THREADS": "1"})
    assert process is not None and process.is_ready(60)
    script = tmp_path / "script.py"
    script.write_text("import random, numpy\nprint(random.random(), numpy.random.random())\n")
    drawn = [run(process, str(script), OMP_NUM_THREADS="1")[1].split() for _ in range(2)]
    process.close()
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


def test_workers_of_its_own_by_spawn(waiting: WaitingProcess, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\ndef double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    assert run(waiting, "-u", str(script))[:2] == (0, "[2, 4]\n")


def test_a_fork_that_would_be_another_program_is_refused(waiting: WaitingProcess, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    for argv, more in (
        ((sys.executable, "-O", str(script)), {}),
        ((sys.executable, str(tmp_path)), {}),
        (("/bin/true",), {}),
        ((sys.executable, str(script)), {"OMP_NUM_THREADS": "77"}),
        ((sys.executable, str(script)), {"PYTHONHASHSEED": "7"}),
    ):
        other = WaitingProcess.launch((), os.environ)
        assert other is not None and other.is_ready(60)
        assert other.start(argv, {**os.environ, **more}) is None
        other.close()


def test_nobody_waits_where_a_fork_would_not_be_whole(tmp_path: Path) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    process = WaitingProcess.launch(("starts_a_thread",), {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process is not None and not process.is_ready(60)
    process.close()


def test_a_run_that_trains_has_done_its_imports() -> None:
    starter = Starter(("decimal",), lambda: 0.0)
    starter.poll(trains=True)
    assert starter._waiting is None, "nothing was started"
    assert starter.start((sys.executable, "-c", ""), os.environ, output=False, errors=False).wait() == 0  # type: ignore[attr-defined]
    starter.poll(trains=True)
    starter.await_ready(60)
    assert starter._waiting is not None and starter._waiting.is_ready(0)
    starter.close()


def test_a_process_that_waits_for_its_first_run_starts_no_threads() -> None:
    """OpenBLAS starts one a core as numpy is imported, unless the environment says one, as it does for ranks."""
    bare = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    process = WaitingProcess.launch(("numpy",), environment_at_import(bare))
    assert process is not None and process.is_ready(60)
    process.close()


def test_a_waiting_process_that_was_killed_is_done_without(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('cold')\n")
    now = [0.0]
    starter = Starter(("decimal",), lambda: now[0])
    first = starter.start((sys.executable, str(script)), os.environ, output=True, errors=False)
    assert isinstance(first, subprocess.Popen) and first.wait() == 0
    starter.poll()
    assert starter._waiting is None, "its imports would slow down those of the ranks"
    now[0] = AFTER_S
    starter.poll()
    starter.await_ready(60)
    warm = starter.start((sys.executable, str(script)), os.environ, output=True, errors=False)
    assert isinstance(warm, ForkedProcess) and warm.wait(30) == 0
    assert isinstance(starter._waiting, WaitingProcess)
    process = starter._waiting._process
    assert isinstance(process, subprocess.Popen)
    process.kill()
    process.wait()
    third = starter.start((sys.executable, str(script)), os.environ, output=True, errors=False)
    assert isinstance(third, subprocess.Popen) and third.stdout is not None
    assert third.stdout.read() == b"cold\n" and third.wait() == 0
    starter.close()
    for each in (first, warm, third):
        assert each.stdout is not None
        each.stdout.close()


def test_nobody_waits_on_a_host_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergy_launch.agent.host_memory.read_free_bytes", lambda: 0)
    starter = Starter(("decimal",))
    starter.prepare(os.environ)
    assert starter._waiting is None


def test_it_ends_with_the_one_that_asks(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom synergy_launch.warm_start.client import WaitingProcess\n"
        "p = WaitingProcess.launch((), os.environ)\nassert p.is_ready(60)\nprint(p._process.pid, flush=True)\nos._exit(0)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pid, until = int(answer.stdout), time.monotonic() + 30
    while time.monotonic() < until and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_command_line_is_read_as_python_reads_it() -> None:
    assert server.command_of(("python", "-u", "a.py", "-m", "x")) == (False, "a.py", ("-m", "x"))
    assert server.command_of(("python", "-P", "-m", "mod", "-u")) == (True, "mod", ("-u",))
    for wrong in ((), ("-c", "1"), ("folder",), ("-m",)):
        with pytest.raises(ValueError, match="not a script"):
            server.command_of(("python", *wrong))
