"""Commands of other launchers (torchrun, accelerate, deepspeed, python, ft_launcher) as synergy-launch's own script and arguments.

`synergy-launch torchrun --nproc-per-node 8 train.py` runs what `synergy-launch train.py` does, and so does torchrun's option alone.
Options that only say where processes run are left out, since the allocation and the plan say it. Any other option that would change the
training or its output is a UsageError, and so is a program that is no Python script.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.records import Shape

from synergy_launch.launcher.job.allocation import JobAllocation

WHERE = "synergy-launch"
_PYTHON = re.compile(r"python(?:[23](?:\.[0-9]+)?)?\Z")
PLACE, FLAG, MODULE, PROCESSES, NODES, NO_LOCAL_RANK = "place", "flag", "module", "processes", "nodes", "no local rank"
# What becomes of each option: left out with its value (PLACE) or alone (FLAG), or said in another way ($NAME: in the environment).
# Options that are not here change more than where processes run.
_TORCHRUN: Mapping[str, str] = {
    "nproc_per_node": PROCESSES, "nnodes": NODES, "m": MODULE, "module": MODULE, "standalone": FLAG, "use_env": NO_LOCAL_RANK,
    **dict.fromkeys(
        ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval", "start_method", "role",
         "node_rank", "master_addr", "master_port", "local_addr"), PLACE),
}  # fmt: skip
_ACCELERATE: Mapping[str, str] = {
    "num_processes": PLACE, "num_machines": NODES, "m": MODULE, "module": MODULE, "multi_gpu": FLAG, "same_network": FLAG,
    "q": FLAG, "quiet": FLAG, "mixed_precision": "$ACCELERATE_MIXED_PRECISION",
    "gradient_accumulation_steps": "$ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "num_cpu_threads_per_process": "$OMP_NUM_THREADS",
    **dict.fromkeys(
        ("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_conf", "max_restarts",
         "monitor_interval", "role"), PLACE),
}  # fmt: skip
_DEEPSPEED: Mapping[str, str] = {
    "num_gpus": PROCESSES, "num_nodes": NODES, "module": MODULE, "no_local_rank": NO_LOCAL_RANK, "no_ssh": FLAG, "force_multi": FLAG,
    **dict.fromkeys(
        ("H", "hostfile", "master_addr", "master_port", "node_rank", "launcher", "launcher_args", "ssh_port"), PLACE),
}  # fmt: skip
_PYTHON_OPTIONS = {"u": "PYTHONUNBUFFERED", "B": "PYTHONDONTWRITEBYTECODE", "O": "PYTHONOPTIMIZE"}
_OF_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "nvidia_resiliency_ext.fault_tolerance.launcher": "ft_launcher",
}
_OPTIONS = {"torchrun": _TORCHRUN, "launch": _TORCHRUN, "ft_launcher": _TORCHRUN, "deepspeed": _DEEPSPEED}
_LOCAL_RANK = {"launch": "--local-rank", "deepspeed": "--local_rank"}  # what it adds to the script's arguments
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh", "csh", "tcsh")
# programs that run another one in a place or environment of their own: as they stand before synergy-launch
_BEFORE = {
    "uv": "uv run", "poetry": "poetry run", "pixi": "pixi run", "pipenv": "pipenv run", "hatch": "hatch run",
    **{name: f"{name} run -n ENVIRONMENT" for name in ("conda", "mamba", "micromamba")},
    "nsys": "nsys profile ...", "ncu": "ncu ...", "numactl": "numactl ...", "taskset": "taskset ...", "stdbuf": "stdbuf ...",
    "env": "env NAME=VALUE", "timeout": "timeout ...", "time": "time", "nice": "nice",
}  # fmt: skip
_CONTAINERS = ("apptainer", "singularity", "enroot", "docker", "podman", "podman-hpc", "shifter")
_STARTERS = ("mpirun", "mpiexec", "srun", "horovodrun", "composer", "colossalai", "fabric", "lightning", "msrun")
_SHEBANG_BYTES = 256
_PIP_EXEC = b"'''exec'"  # second line of what pip installs where the path of python is too long for a first one
# Accelerate's configuration: keys that only describe the machine, or are off
_CONFIG_PLACE = (
    "compute_environment",
    "distributed_type",
    "main_training_function",
    "gpu_ids",
    "debug",
    "num_processes",
)
_CONFIG_OFF = ("false", "no", "'no'", "[]", "null", "none", "")
_KINDS = ("multi_gpu", "multi_cpu", "no", "'no'")


@dataclass(frozen=True, kw_only=True)
class Translation:
    """What synergy-launch runs in place of another launcher's command."""

    script: str
    arguments: tuple[str, ...]
    module: bool = False
    launcher: str = ""  # "": the script was named without another launcher
    processes: int | None = None  # that the command wants on each node
    nodes: int | None = None
    local_rank: str = ""  # the option by which each process gets its local rank, as the launcher adds it
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def remark(self) -> str:
        """Return a line for the log that says what is run, or "" if the user wrote just that."""
        if self.launcher in ("", WHERE):
            return ""
        return f"runs {self.script} as '{WHERE} {'-m ' if self.module else ''}{self.script} ...' in place of {self.launcher}"


def translate(script: str, arguments: Sequence[str], module: bool = False, *, here: bool = True) -> Translation:
    """Return what to run for SCRIPT and ARGUMENTS, where SCRIPT may be another launcher. Raises UsageError where none is exact.

    `here`: the command is to run on this machine, whose interpreter and configuration of Accelerate's are looked at.
    """
    name = script.rpartition("/")[2]
    if module:
        launcher = _OF_MODULES.get(script, "")
        words = list(arguments)
        return (
            _parse(launcher, words, here)
            if launcher
            else Translation(script=script, arguments=tuple(arguments), module=True)
        )
    if _PYTHON.match(name):
        return _python(script, list(arguments), here)
    if name in ("torchrun", "deepspeed", "ft_launcher"):
        return _parse(name, list(arguments), here)
    if script.startswith("-"):  # an option in front of the script that is not synergy-launch's own
        return _parse("torchrun", [script, *arguments], here, written=WHERE)
    _check_program(name)
    if name == "accelerate":
        if list(arguments[:1]) != ["launch"]:
            raise UsageError(
                "accelerate", f"'accelerate {' '.join(arguments[:1])}' starts no training", f"{WHERE} train.py ..."
            )
        return _parse(name, list(arguments[1:]), here)
    return Translation(script=script, arguments=tuple(arguments))


def _check_program(name: str) -> None:
    """Raise UsageError where the program `name` is to run the script in another place, or to start its processes."""
    if name in _SHELLS:
        what = f"is to run a script of its own, and {WHERE} runs Python scripts"
        raise UsageError(name, what, f"in that script {WHERE} train.py ..., in place of torchrun or python")
    if name in _CONTAINERS:
        what = f"stands behind {WHERE}, which would run outside its container"
        raise UsageError(
            name, what, f"{name} ... python3 synergy-launch.pyz train.py ..., as the page on containers shows"
        )
    if name in _BEFORE:
        raise UsageError(
            name, f"stands behind {WHERE}, which uses its own python", f"{_BEFORE[name]} {WHERE} train.py ..."
        )
    if name in _STARTERS:
        raise UsageError(name, f"is not needed: {WHERE} starts a process on each GPU", f"{WHERE} train.py ...")


def check_script(script: str) -> None:
    """Raise UsageError where the file `script` can't be read, or is no Python script by its first line."""
    try:
        with Path(script).open("rb") as file:
            first, _, rest = file.read(_SHEBANG_BYTES).partition(b"\n")
    except OSError:
        what = "does not exist or can't be read"
        raise UsageError(f"script {script!r}", what, "name a training script, or -m MODULE") from None
    if first.startswith(b"\x7fELF"):
        raise UsageError(f"script {script!r}", "is a program, not a Python script", f"{WHERE} train.py ...")
    is_python = script.endswith(".py") or b"python" in first or rest.startswith(_PIP_EXEC)
    if first.startswith(b"#!") and not is_python:
        right = f"start it without {WHERE}, and in it {WHERE} train.py ..., in place of torchrun or python"
        raise UsageError(f"script {script!r}", "is a shell script, not Python", right)


def check_processes(translation: Translation, sizes: Sequence[Shape]) -> None:
    """Raise UsageError where the command starts other nodes or processes than each of `sizes`, the last of which was requested."""
    n, nodes, launcher = translation.processes, translation.nodes, translation.launcher
    right = "or leave the option out"
    if n is not None and all(n != max(1, size.gpus_per_node) for size in sizes):
        what = f"it is to start {n} processes on a node, but the job has {sizes[-1].gpus_per_node} GPUs there"
        raise UsageError(launcher, what, f"--gres=gpu:{n} in the script's #SBATCH lines, {right}")
    if nodes is not None and all(nodes != size.nodes for size in sizes):
        what = f"it is to start on {nodes} nodes, but the job has {sizes[-1].nodes}"
        raise UsageError(launcher, what, f"--nodes={nodes} in the script's #SBATCH lines, {right}")


def with_processes(translation: Translation, allocation: JobAllocation, requested_shape: Shape | None) -> JobAllocation:
    """Return the allocation, outside Slurm with as many processes as the command starts.

    `requested_shape`: the size of the sbatch line. Raises UsageError where the command starts other nodes or processes than the job has or
    requested.
    """
    if allocation.job_id is None and not allocation.gpus:
        return replace(allocation, gpus=translation.processes or 0)
    here = Shape("", len(allocation.nodes), allocation.gpus)
    check_processes(translation, [size for size in (here, requested_shape) if size is not None])
    return allocation


def _python(script: str, words: list[str], here: bool) -> Translation:
    if here:
        _check_interpreter(script)
    environment: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        option = words.pop(0)
        names = [_PYTHON_OPTIONS.get(letter) for letter in option[1:]]
        if option == "-W" and words:
            environment["PYTHONWARNINGS"] = words.pop(0)
        elif option.startswith("--") or None in names:
            raise UsageError("python", f"option {option} can't be passed on", f"{WHERE} train.py ...")
        else:
            environment |= dict.fromkeys((name for name in names if name), "1")
    if not words or words[0] in ("-c", "-"):
        raise UsageError("python", "without a script it has nothing to train", f"{WHERE} train.py ...")
    if words[0] != "-m":
        translation = Translation(script=words[0], arguments=tuple(words[1:]), launcher="python")
    elif len(words) < 2:
        raise UsageError("python -m", "names no module", f"{WHERE} -m MODULE ...")
    else:
        translation = translate(words[1], words[2:], module=True, here=here)
        translation = translation if translation.launcher else replace(translation, launcher="python")
    return replace(translation, environment={**environment, **translation.environment})


def _check_interpreter(script: str) -> None:
    """Raise UsageError where `script` is another environment's python than the one that runs the launcher."""
    path = shutil.which(script)
    if path is None:
        if "/" in script:
            raise UsageError(script, "is not there, or can't be run", f"{WHERE} train.py ...")
        return
    if Path(path).parent.resolve() != Path(sys.executable).parent.resolve():
        what = f"is not the python of the launcher ({sys.executable}), which runs the script"
        raise UsageError(path, what, f"{path} $(which {WHERE}) train.py ..., with synergy-launch installed there too")


def _parse(launcher: str, words: list[str], here: bool, written: str = "") -> Translation:
    """Return the translation of the words after the launcher's name, which the user has `written` so."""
    written = written or {"launch": "torch.distributed.launch", "accelerate": "accelerate launch"}.get(
        launcher, launcher
    )
    options = _ACCELERATE if launcher == "accelerate" else _OPTIONS[launcher]
    module, local_rank = False, _LOCAL_RANK.get(launcher, "")
    sizes: dict[str, int | None] = {}
    environment: dict[str, str] = {}
    if launcher == "accelerate" and here:
        environment = _accelerate_environment(words)
    while words and words[0].startswith("-") and words[0] != "--":
        option, equals, value = words.pop(0).partition("=")
        key = option.lstrip("-").replace("-", "_")
        if key == "config_file" and launcher == "accelerate":
            words = words if equals else words[1:]
            continue
        kind = options.get(key)
        if kind is None:
            raise UsageError(written, f"option {option} has no equivalent here", _advice(launcher, option))
        if kind in (FLAG, MODULE, NO_LOCAL_RANK):
            module = module or kind == MODULE
            local_rank = "" if kind == NO_LOCAL_RANK else local_rank
            continue
        if not equals:
            if not words:
                raise UsageError(written, f"option {option} has no value", f"{WHERE} train.py ...")
            value = words.pop(0)
        if kind.startswith("$"):
            environment[kind[1:]] = value
        elif kind in (PROCESSES, NODES):
            sizes[kind] = int(value) if value.isdecimal() else None  # auto, gpu, 1:4
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise UsageError(written, "names no script", f"{WHERE} train.py ...")
    return Translation(
        script=words[0], arguments=tuple(words[1:]), module=module, launcher=written, processes=sizes.get(PROCESSES),
        nodes=sizes.get(NODES), local_rank=local_rank, environment=environment,
    )  # fmt: skip


def _advice(launcher: str, option: str) -> str:
    if launcher == "accelerate":
        return f"set it in the script's Accelerator(...) or TrainingArguments, and write {WHERE} train.py ..."
    if launcher == "ft_launcher":
        return f"{WHERE} train.py ...: it watches and restarts the run itself, without {option}"
    return f"{WHERE} train.py ..., without {option}"


def _accelerate_environment(words: Sequence[str]) -> dict[str, str]:
    """Return what Accelerate's configuration sets, from --config_file or its default place. Raises UsageError for more than the usual."""
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    path, is_explicit = cache / "accelerate" / "default_config.yaml", False
    for i, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--config_file", "--config-file"):
            path, is_explicit = Path(value if equals else "".join(words[i + 1 : i + 2])), True
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        if is_explicit:
            raise UsageError(
                str(path), f"can't be read ({error.strerror})", "a configuration of Accelerate's"
            ) from None
        return {}
    environment = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith(("#", "---")):
            continue
        key, _, value = (part.strip() for part in line.partition(":"))
        kind = _ACCELERATE.get(key, "")
        off = value.lower() in _CONFIG_OFF and value != ""
        if kind.startswith("$") and not off:
            environment[kind[1:]] = value.strip("'\"")
        elif (key == "distributed_type" and value.lower() not in _KINDS) or (
            not off and not kind and key not in _CONFIG_PLACE
        ):
            what = f"'{line.strip()[:60]}' of Accelerate's configuration has no equivalent here"
            raise UsageError(
                str(path), what, f"set it in the script's Accelerator(...), and write {WHERE} train.py ..."
            )
    return environment
