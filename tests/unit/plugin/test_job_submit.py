"""slurm_plugins/synergy.lua and its hook on whole jobs, in each Lua there is, with a stand-in for Slurm's tables.

The stand-in's fields and unset values are those of job_submit/lua in Slurm 22.05: setting a field that Slurm does not
know fails here too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugin.lua_runtimes import PLUGIN, literal, runtime

HOOK = PLUGIN.with_name("job_submit.hook.lua")
STAND_IN = b"""
local values, environment, log = ...
local known = {script=1, admin_comment=1, comment=1, requeue=1, begin_time=1, array_inx=1, het_job_offset=1,
  tres_per_node=1, tres_per_job=1, tres_per_socket=1, tres_per_task=1, ntasks_per_node=1, ntasks_per_tres=1, name=1,
  num_tasks=1, min_nodes=1, max_nodes=1, cpus_per_task=1, cpus_per_tres=1, ntasks_per_socket=1, ntasks_per_core=1}
slurm = {SUCCESS = 0, ERROR = -1, FAILURE = -1, NO_VAL = 4294967294, NO_VAL16 = 65534}
for _, name in ipairs{"log_user", "log_error", "log_info"} do
  slurm[name] = function(...) log[#log + 1] = name .. ":" .. string.format((unpack or table.unpack)({...})) end
end
local env = setmetatable({}, {__index = environment, __newindex = function(_, name, value)
  if not environment then error("no environment") end
  environment[name] = value
end})
return setmetatable({}, {
  __index = function(_, name) if name == "environment" then return env end return values[name] end,
  __newindex = function(_, name, value)
    if not known[name] then error("_set_job_field: unrecognized field: " .. name) end
    values[name] = value
  end,
})
"""
RESIZABLE = "gres:gpu:a100:4"
SCRIPT = "#!/bin/bash\n#SYNERGY model=llama2-7b max_gpus=16\nsrun synergy-launch train.py\n"


@dataclass
class Outcome:
    rc: int
    said: list[str]  # what reached the user's terminal
    logged: list[str]
    job: dict[str, Any]
    environment: dict[str, str]


class Controller:
    """A Lua state as slurmctld has one; `hook` is the text of job_submit.lua, by default the module alone."""

    def __init__(self, lua: str, hook: str = "") -> None:
        self.state = runtime(lua)
        if self.state is None:
            pytest.skip(f"lupa has no {lua} here")
        self.state.execute(b"slurm = {SUCCESS = 0, ERROR = -1}")
        if hook:
            self.state.execute(hook.encode())
            self._submit = self.state.globals()[b"slurm_job_submit"]
            self._modify = self.state.globals()[b"slurm_job_modify"]
        else:
            self.module = self.state.execute(b"return dofile(" + literal(str(PLUGIN)) + b")")
            self._submit, self._modify = self.module[b"submit"], self.module[b"modify"]

    def configure(self, **options: object) -> None:
        self.module[b"configure"](self.state.execute(b"return " + literal(options)))

    def submit(self, script: str | None, environment: dict[str, str] | bool = True, **fields: object) -> Outcome:
        """`environment`: what sbatch sends along; False: the job has none that can be written."""
        job: dict[str, object] = {
            "het_job_offset": 4294967294.0,
            "ntasks_per_node": 65534.0,
            "ntasks_per_tres": 65534.0,
            "requeue": 65534.0,
            "begin_time": 0.0,
            "tres_per_node": RESIZABLE,
            "comment": "theirs",
        }
        job |= {"script": script, **fields}
        return self._call(self._submit, job, environment, lambda desc: (desc, None, 1000.0))

    def modify(self, stamp: str | None, **fields: object) -> Outcome:
        record = self.state.execute(b"return " + literal({"admin_comment": stamp}))
        return self._call(self._modify, fields, False, lambda desc: (desc, record, None, 1000.0))

    def _call(
        self, function: Any, job: dict[str, Any], environment: dict[str, str] | bool, arguments: Callable[[Any], Any]
    ) -> Outcome:
        values = self.state.execute(b"return " + literal(job))
        given = environment if isinstance(environment, dict) else {}
        env = self.state.execute(b"return " + literal(given)) if environment is not False else None
        log = self.state.execute(b"return {}")
        desc = self.state.eval(b"function(...) " + STAND_IN + b" end")(values, env, log)
        rc = function(*arguments(desc))
        lines = [line.decode() for line in log.values()]
        return Outcome(
            int(rc),
            [line[9:] for line in lines if line.startswith("log_user:")],
            [line for line in lines if not line.startswith("log_user:")],
            {k.decode(): v.decode() if isinstance(v, bytes) else v for k, v in values.items()},
            {k.decode(): v.decode() for k, v in env.items()} if env is not None else {},
        )


@pytest.fixture(params=["lua51", "lua53", "lua54"])
def lua(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def slurm(lua: str, tmp_path: Path) -> Controller:
    """A controller with a live daemon that asks for 20 s of grace."""
    controller = Controller(lua)
    (tmp_path / "heartbeat").write_text(f"{int(time.time())} 20\n")
    controller.configure(state_dir=str(tmp_path))
    return controller


def test_a_good_job_is_stamped_and_put_off(slurm: Controller, tmp_path: Path) -> None:
    before = time.time()
    outcome = slurm.submit(SCRIPT)
    assert (outcome.rc, outcome.said) == (0, [])
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16"
    assert outcome.job["comment"] == "theirs"
    assert outcome.job["requeue"] == 1
    assert int(before) + 20 <= outcome.job["begin_time"] <= time.time() + 20
    assert outcome.environment == {"SYNERGY_STATE_DIR": str(tmp_path)}


@pytest.mark.parametrize(
    "script", [None, "", "#!/bin/sh\nsrun x\n", "#!/bin/sh\necho\n#SYNERGY tp=no\n", "# SYNERGY x\n"]
)
def test_jobs_without_a_directive_are_not_touched(slurm: Controller, script: str | None) -> None:
    fields: dict[str, Any] = {
        "array_inx": "1-9",
        "tres_per_job": "gres:gpu:8",
        "ntasks_per_node": 8.0,
        "requeue": 0.0,
        "het_job_offset": 0.0,
    }
    outcome = slurm.submit(script, **fields)
    assert (outcome.rc, outcome.said, outcome.logged, outcome.environment) == (0, [], [], {})
    left = {"comment": "theirs", "tres_per_node": RESIZABLE, "begin_time": 0.0, "ntasks_per_tres": 65534.0, **fields}
    assert outcome.job == left | ({"script": script} if script is not None else {})


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"tres_per_node": None}, "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no"),
        ({"tres_per_node": "gres:nic:1"}, "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no"),
        (
            {"tres_per_node": None, "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no",
        ),
        (
            {"tres_per_node": "gres:nic:1", "num_tasks": 8.0},
            "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no",
        ),
        (
            {"tres_per_node": "gres:gpu:a100:2,gres:gpu:h100:2"},
            "the job asks for several kinds of GPU at once; write one --gres=gpu:TYPE:N, or resize=no",
        ),
        ({"requeue": 0.0}, "--no-requeue keeps Synergy from resizing; drop --no-requeue, or write resize=no"),
    ],
)
def test_jobs_that_can_not_be_resized_are_refused(slurm: Controller, fields: dict[str, Any], line: str) -> None:
    before = slurm.submit("#!/bin/sh\n", **fields).job
    outcome = slurm.submit(SCRIPT, **fields)
    assert (outcome.rc, outcome.said) == (-1, ["#SYNERGY in script line 2: " + line])
    assert outcome.job == before | {"script": SCRIPT}


TASKS = "write --nodes=N --ntasks-per-node=1 and start all with srun synergy-launch to have it resized"
GPUS = "write --nodes=N --gres=gpu:M (GPUs per node) and start all with srun synergy-launch to have it resized"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"ntasks_per_node": 8.0}, f"--ntasks-per-node=8 keeps the job at its size; {TASKS}"),
        ({"num_tasks": 8.0}, f"--ntasks=8 keeps the job at its size; {TASKS}"),
        ({"ntasks_per_tres": 2.0, "min_nodes": 1.0, "max_nodes": 1.0}, f"--ntasks-per-gpu=2 keeps the job at its size; {TASKS}"),
        ({"tres_per_job": "gres:gpu:8", "tres_per_node": None}, f"--gpus keeps the job at its size; {GPUS}"),
        (
            {"tres_per_job": "gres:gpu:7", "tres_per_node": None, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_job": "gres:gpu:8", "tres_per_node": None, "min_nodes": 1.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_job": "gres:gpu:a100:4,gres:gpu:h100:4", "tres_per_node": None, "min_nodes": 1.0, "max_nodes": 1.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_task": "gres:gpu:1", "tres_per_node": None, "num_tasks": 8.0},
            f"--gpus-per-task keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_task": "gres:gpu:1", "tres_per_node": None, "num_tasks": 7.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus-per-task keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_socket": "gres/gpu:2", "tres_per_node": None, "min_nodes": 1.0, "max_nodes": 1.0},
            f"--gpus-per-socket keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_node": "gres:nic:1", "tres_per_job": "gres:gpu:4", "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_node": None, "tres_per_job": "gres:gpu:4,license:x:1", "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_job": "gres:nic:1", "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--ntasks-per-node=4 keeps the job at its size; {TASKS}",
        ),
        (
            {"tres_per_task": "gres:nic:1", "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--ntasks-per-node=4 keeps the job at its size; {TASKS}",
        ),
        (
            {"tres_per_socket": "gres:nic:1", "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--ntasks-per-node=4 keeps the job at its size; {TASKS}",
        ),
    ],
)  # fmt: skip
def test_what_has_no_exact_form_by_node_is_left_alone_and_said(
    slurm: Controller, fields: dict[str, Any], line: str
) -> None:
    before = slurm.submit("#!/bin/sh\n", **fields).job
    outcome = slurm.submit(SCRIPT, **fields)
    assert (outcome.rc, outcome.said) == (0, ["#SYNERGY in script line 2: " + line])
    stamp = {"admin_comment": "synergy:1 model=llama2-7b max_gpus=16"}
    assert outcome.job == before | {"script": SCRIPT} | stamp  # not put off either: it keeps its size


def het(slurm: Controller, *gpus: str | None, **fields: Any) -> list[Outcome]:
    """One heterogeneous job, a component for each of `gpus`: as with sbatch the script comes with the first."""
    stub = "#!/bin/sh\nexit 0\n"
    return [
        slurm.submit(stub if n else SCRIPT, het_job_offset=float(n), tres_per_node=g, **fields)
        for n, g in enumerate(gpus)
    ]


def test_a_heterogeneous_job_with_gpus_in_a_later_component_is_put_off(slurm: Controller, tmp_path: Path) -> None:
    first, second, third = het(slurm, None, RESIZABLE, None)
    assert (first.rc, first.said, first.job["requeue"]) == (0, [], 1)
    assert first.job["begin_time"] > time.time()
    assert first.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16", "the job as a whole is put off"
    assert first.environment == {"SYNERGY_STATE_DIR": str(tmp_path)}
    for later in (second, third):
        assert (later.rc, later.said, later.job["begin_time"], later.job["requeue"]) == (0, [], 0.0, 65534)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ((RESIZABLE, None), [["the first component of a heterogeneous job keeps its size"], []]),
        ((None, RESIZABLE, RESIZABLE), [[], [], ["several components of the heterogeneous job ask for GPUs"]]),
    ],
)
def test_heterogeneous_jobs_that_keep_their_size_are_said(
    slurm: Controller, gpus: tuple[str | None, ...], said: list[list[str]]
) -> None:
    outcomes = het(slurm, *gpus)
    assert [o.rc for o in outcomes] == [0] * len(gpus)
    assert [len(o.said) for o in outcomes] == [len(lines) for lines in said]
    for outcome, lines in zip(outcomes, said, strict=True):
        assert all(line in outcome.said[0] for line in lines)
    if gpus[0]:
        assert (outcomes[0].job["begin_time"], outcomes[0].job["requeue"]) == (0.0, 65534)


def test_a_component_that_asks_by_job_is_said(slurm: Controller) -> None:
    het(slurm, None)
    outcome = slurm.submit("#!/bin/sh\nexit 0\n", het_job_offset=1.0, tres_per_node=None, tres_per_job="gres:gpu:4")
    assert (outcome.rc, len(outcome.said)) == (0, 1) and "--gpus keeps the job at its size" in outcome.said[0]


def test_components_of_somebody_else_say_nothing(slurm: Controller) -> None:
    """A component whose leader has no directive, or was another job's."""
    slurm.submit("#!/bin/sh\n", het_job_offset=0.0, tres_per_node=RESIZABLE)
    outcome = slurm.submit("#!/bin/sh\nexit 0\n", het_job_offset=1.0, tres_per_node=RESIZABLE)
    assert (outcome.rc, outcome.said) == (0, [])


def test_arrays_are_jobs_like_others(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, array_inx="1-9%1")
    assert (outcome.rc, outcome.said, outcome.job["array_inx"]) == (0, [], "1-9%1")
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16"
    assert outcome.job["begin_time"] > time.time()


TWO = {"min_nodes": 2.0, "max_nodes": 2.0}
ONE = {"min_nodes": 1.0, "max_nodes": 1.0}


@pytest.mark.parametrize(
    ("fields", "nodes", "gpus", "cpus_per_task"),
    [
        ({"tres_per_job": "gres:gpu:4", **ONE}, 1, "gres:gpu:4", None),
        ({"tres_per_job": "gres:gpu:1"}, 1, "gres:gpu:1", None),
        ({"tres_per_job": "gres:gpu:a100:8", **TWO}, 2, "gres:gpu:a100:4", None),
        ({"tres_per_job": "gres/gpu:a100:8", **TWO}, 2, "gres:gpu:a100:4", None),
        ({"tres_per_job": "gres:gpu:8", "tres_per_node": "gres:gpu:a100:4"}, 2, "gres:gpu:a100:4", None),
        ({"tres_per_task": "gres:gpu:1", "num_tasks": 8.0, "cpus_per_task": 2.0, **TWO}, 2, "gres:gpu:4", 8),
        ({"tres_per_task": "gres:gpu:2", "ntasks_per_node": 2.0, "num_tasks": 4.0, **TWO}, 2, "gres:gpu:4", 2),
        ({"tres_per_task": "gres:gpu:v100:4", "num_tasks": 1.0}, 1, "gres:gpu:v100:4", None),
        ({"tres_per_node": "gres:gpu:4", "ntasks_per_node": 4.0, "num_tasks": 8.0, "cpus_per_task": 3.0, **TWO}, 2, "gres:gpu:4", 12),
        ({"tres_per_node": "gres:gpu:4", "num_tasks": 4.0, **ONE}, 1, "gres:gpu:4", 4),
        ({"tres_per_node": "gres:gpu:4", "ntasks_per_tres": 1.0, **TWO}, 2, "gres:gpu:4", 4),
        ({"tres_per_node": "gres:gpu", "ntasks_per_node": 2.0, "cpus_per_tres": "gres:gpu:8", **ONE}, 1, "gres:gpu:1", None),
    ],
)  # fmt: skip
def test_other_forms_are_rewritten_by_node_where_that_is_exact(
    slurm: Controller, fields: dict[str, Any], nodes: int, gpus: str, cpus_per_task: int | None
) -> None:
    environment = {"SLURM_NTASKS": "8", "SLURM_GPUS": "8", "SLURM_GPUS_PER_TASK": "1"}
    outcome = slurm.submit(SCRIPT, environment, **{"tres_per_node": None, **fields})
    assert (outcome.rc, outcome.said) == (0, [])
    job = outcome.job
    assert (job["min_nodes"], job["max_nodes"], job["num_tasks"], job["ntasks_per_node"]) == (nodes, nodes, nodes, 1)
    assert (job["tres_per_node"], job.get("cpus_per_task")) == (gpus, cpus_per_task)
    assert not job.get("tres_per_job") and not job.get("tres_per_task") and job["ntasks_per_tres"] == 65534
    told = {k: v for k, v in outcome.environment.items() if k.startswith("SLURM")}
    assert told == {"SLURM_NTASKS": "1", "SLURM_GPUS": "", "SLURM_GPUS_PER_TASK": ""}


@pytest.mark.parametrize(
    "body",
    [
        "srun -n8 python train.py\n",
        "srun python prepare.py\nsrun synergy-launch train.py\n",
        "srun synergy-launch train.py\nmpirun ./x\n",
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun synergy-launch train.py\n",
        "srun --ntasks=8 synergy-launch train.py\n",
        "srun -n8 synergy-launch train.py\n",
        "srun --gpus-per-task=1 \\\n  synergy-launch train.py\n",
        "echo $SLURM_GPUS\nsrun synergy-launch train.py\n",
        "python train.py\n# srun synergy-launch train.py\n",
        "true\n" * 40_000 + "srun synergy-launch train.py\n",
        "srun synergy-launch\n" * 40,
        "srun python prepare.py; synergy-launch train.py\n",
        "srun synergy-launch a.py; srun python b.py\n",
        "srun synergy-launch a.py && mpiexec ./b\n",
        "srun synergy-launch a.py & python b.py\n",
        "srun synergy-launch a.py | tee log\n",
        "srun synergy-launch `./arguments`\n",
        "srun synergy-launch $(./arguments)\n",
        "srun synergy-launch <(srun hostname)\n",
        "srun synergy-launch a.py srun\n",
        "srun python synergy-launch\n",
        "srun $OPTIONS synergy-launch a.py\n",
        "srun -ln8 synergy-launch a.py\n",
        "mpirun synergy-launch a.py\n",
        "srun echo-synergy-launch a.py\n",
        "srun --chdir=/opt/synergy-launch python a.py\n",
        "srun --comment=' -x synergy-launch ' python a.py\n",
        "srun -c2 synergy-launch a.py\n",
        "time srun synergy-launch a.py\n",
        "synergy-launcher a.py\n",
        "sr\\\nun python a.py\nsrun synergy-launch a.py\n",
        "# a remark \\\nsrun python a.py\nsrun synergy-launch a.py\n",
        "srun synergy-launch " + "x" * 5000 + "\n",
    ],
)
def test_a_script_that_starts_tasks_itself_keeps_them(slurm: Controller, body: str) -> None:
    fields: dict[str, Any] = {"ntasks_per_node": 8.0, "num_tasks": 8.0, **ONE}
    outcome = slurm.submit("#!/bin/sh\n#SYNERGY tp=2\n" + body, **fields)
    assert outcome.rc == 0 and len(outcome.said) == 1
    assert "--ntasks-per-node=8 keeps the job at its size" in outcome.said[0]
    assert (outcome.job["num_tasks"], outcome.job["ntasks_per_node"]) == (8.0, 8.0)


def test_launch_lines_are_found_over_several_lines_and_behind_paths(slurm: Controller) -> None:
    body = "# srun starts it; once a node\nsrun --mpi=none \\\n  /opt/bin/synergy-launch train.py --gpus 8 -n 3 >out 2>&1\n"
    fields: dict[str, Any] = {"ntasks_per_node": 8.0, "num_tasks": 8.0, **ONE}
    outcome = slurm.submit("#!/bin/sh\n#SYNERGY tp=2\n" + body, **fields)
    assert (outcome.rc, outcome.said, outcome.job["num_tasks"]) == (0, [], 1)


def test_sbatchs_words_for_srun_do_not_outlive_the_size(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, {"SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS": "2", "HOME": "/"})
    left = {"SLURM_GPUS_PER_NODE": "", "SLURM_NTASKS": "2", "HOME": "/"}
    assert {k: outcome.environment[k] for k in left} == left
    fixed = slurm.submit("#SYNERGY resize=no\n", {"SLURM_GPUS_PER_NODE": "4"})
    assert fixed.environment["SLURM_GPUS_PER_NODE"] == "4"


def test_resize_no_changes_and_says_nothing(slurm: Controller) -> None:
    script = "#SYNERGY resize=no\n"
    fields: dict[str, Any] = {
        "tres_per_job": "gres:gpu:8",
        "tres_per_node": None,
        "ntasks_per_node": 8.0,
        "requeue": 0.0,
        "array_inx": "1-2",
    }
    outcome = slurm.submit(script, **fields)
    assert (outcome.rc, outcome.said, outcome.job["admin_comment"]) == (0, [], "synergy:1 resize=no")
    assert {k: outcome.job.get(k) for k in fields} == fields


def test_a_wrong_directive_is_refused_with_its_line(slurm: Controller) -> None:
    outcome = slurm.submit("#!/bin/sh\n#SYNERGY min_gpus=4\n#SYNERGY max_gpus=2\n")
    line = "#SYNERGY in script line 3: min_gpus=4 is above max_gpus=2; let min_gpus be at most max_gpus"
    assert (outcome.rc, outcome.said) == (-1, [line])
    assert "admin_comment" not in outcome.job and outcome.job["begin_time"] == 0.0


def test_percent_signs_reach_the_user_as_they_are(slurm: Controller) -> None:
    assert "'%s%n%d'" in slurm.submit("#SYNERGY tp=%s%n%d").said[0]


def test_a_begin_time_within_the_grace_is_told(slurm: Controller) -> None:
    begin = float(int(time.time()) + 10)
    outcome = slurm.submit(SCRIPT, begin_time=begin, admin_comment="a note")
    assert outcome.job["begin_time"] > begin
    assert outcome.job["admin_comment"] == f"synergy:1 model=llama2-7b max_gpus=16 | begin={int(begin)} note=a%20note"


def test_a_begin_time_of_a_job_that_keeps_its_size_is_told(slurm: Controller) -> None:
    begin = float(int(time.time()) + 10)
    outcome = slurm.submit(SCRIPT, begin_time=begin, tres_per_node=None, tres_per_job="gres:gpu:3", num_tasks=2)
    assert outcome.job["begin_time"] == begin and outcome.job["admin_comment"].endswith(f" | begin={int(begin)}")


def test_a_later_begin_time_is_kept(slurm: Controller) -> None:
    later = float(int(time.time()) + 3600)
    job = slurm.submit(SCRIPT, begin_time=later).job
    assert job["begin_time"] == later
    assert job["admin_comment"].endswith(f" | begin={int(later)}"), "Slurm shows it as it shows the grace"
    assert slurm.submit(SCRIPT, begin_time=1.0).job["begin_time"] > time.time()


def test_an_operators_admin_comment_is_kept_behind_the_stamp(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, admin_comment="ticket 7 | synergy:1")
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16 | note=ticket%207%20%7C%20synergy:1"


def test_an_environment_that_can_not_be_written_stops_nothing(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, environment=False)
    assert (outcome.rc, outcome.said) == (0, [])
    assert outcome.job["admin_comment"].startswith("synergy:1 ")


@pytest.mark.parametrize(
    "beat",
    [
        None,
        "",
        "yesterday 20\n",
        "{now} 20",
        "{old} 20\n",
        "{ahead} 20\n",
        "{now} -5\n",
        "9" * 60,
        "{now} 1e9\n",
        "\0\0 1\n",
    ],
)
def test_with_a_dead_daemon_jobs_are_only_checked(lua: str, tmp_path: Path, beat: str | None) -> None:
    now = int(time.time())
    if beat is not None:
        (tmp_path / "heartbeat").write_text(beat.format(now=now, old=now - 200, ahead=now + 200))
    controller = Controller(lua)
    controller.configure(state_dir=str(tmp_path), heartbeat_max_age_s=180)
    outcome = controller.submit(SCRIPT)
    assert (outcome.rc, outcome.said, outcome.environment) == (0, [], {})
    assert "admin_comment" not in outcome.job
    assert (outcome.job["requeue"], outcome.job["begin_time"]) == (65534.0, 0.0)
    assert controller.submit("#SYNERGY tp=0").rc == -1


def test_a_module_that_was_not_configured_only_checks(lua: str) -> None:
    controller = Controller(lua)
    assert "admin_comment" not in controller.submit(SCRIPT).job
    assert controller.submit("#SYNERGY tp=0").rc == -1


def test_grace_of_the_hook_goes_before_the_daemons_and_is_bounded(slurm: Controller, tmp_path: Path) -> None:
    slurm.configure(grace_s=5)
    assert slurm.submit(SCRIPT).job["begin_time"] <= time.time() + 5
    slurm.configure(grace_s=10**7)
    assert slurm.submit(SCRIPT).job["begin_time"] <= time.time() + 3600


@pytest.mark.parametrize("options", [{"statedir": "/x"}, {"state_dir": 1}, {"grace_s": "20"}])
def test_a_wrong_option_of_the_hook_is_an_error(lua: str, options: dict[str, object]) -> None:
    with pytest.raises(Exception, match=r"synergy\.configure: "):
        Controller(lua).configure(**options)


def test_a_failure_of_the_module_refuses_jobs_with_a_directive_only(slurm: Controller) -> None:
    slurm.state.execute(b"table.concat = nil")  # any runtime error inside the module
    outcome = slurm.submit(SCRIPT)
    assert outcome.rc == -1
    assert len(outcome.said) == 1 and outcome.said[0].startswith("#SYNERGY in script line 1: the Synergy plugin failed")
    assert any("uid 1000" in line for line in outcome.logged)
    assert "admin_comment" not in outcome.job
    untouched = slurm.submit("#!/bin/sh\nsrun x\n")
    assert (untouched.rc, untouched.said, untouched.logged) == (0, [], [])


def test_even_a_broken_string_library_lets_no_directive_through(slurm: Controller) -> None:
    slurm.state.execute(b"string.sub = nil")
    refused = slurm.submit(SCRIPT)
    assert (refused.rc, len(refused.said)) == (-1, 1)
    assert slurm.submit("#!/bin/sh\necho '#SYNERGY'\n").rc == 0


def test_a_long_script_is_read_to_its_directive(slurm: Controller) -> None:
    outcome = slurm.submit("#!/bin/sh\n" + "# words\n" * 10_000 + "#SYNERGY tp=2\n")
    assert (outcome.rc, outcome.job["admin_comment"]) == (0, "synergy:1 tp=2")


def test_a_script_beyond_the_bounds_is_refused_with_one_line(slurm: Controller) -> None:
    outcome = slurm.submit("#!/bin/sh\n" + "# words\n" * 100_000 + "#SYNERGY tp=2\n")
    assert outcome.rc == -1 and len(outcome.said) == 1 and outcome.logged == []
    assert "no command stands in the first 131072 bytes of the script" in outcome.said[0]
    assert "admin_comment" not in outcome.job


def test_modify_refuses_nothing_and_warns_of_a_lost_requeue(slurm: Controller) -> None:
    assert slurm.modify("synergy:1 tp=2", requeue=0.0).said == [
        "Synergy can't resize a job with Requeue=0; it keeps the size it has"
    ]
    for stamp, fields in (("synergy:1", {}), (None, {"requeue": 0.0}), ("other", {"requeue": 0.0})):
        outcome = slurm.modify(stamp, **fields)
        assert (outcome.rc, outcome.said) == (0, [])


def hook_text(module: Path, state_dir: Path) -> str:
    text = HOOK.read_text().replace("/etc/slurm/synergy/synergy.lua", str(module))
    return text.replace('state_dir = "/var/lib/synergy"', f'state_dir = "{state_dir}"')


def test_the_hook_as_shipped(lua: str, tmp_path: Path) -> None:
    (tmp_path / "heartbeat").write_text(f"{int(time.time())} 20\n")
    controller = Controller(lua, hook_text(PLUGIN, tmp_path))
    assert controller.submit(SCRIPT).job["admin_comment"].startswith("synergy:1 ")
    assert controller.submit("#SYNERGY tp=0").rc == -1
    assert controller.submit("#!/bin/sh\n").rc == 0
    assert controller.submit(None).rc == 0
    assert controller.modify("synergy:1", requeue=0.0).rc == 0


@pytest.mark.parametrize("broken", ["absent", "syntax", "no grammar"])
def test_the_hook_without_a_module_refuses_jobs_with_a_directive_only(lua: str, tmp_path: Path, broken: str) -> None:
    module = tmp_path / "synergy.lua"
    if broken == "syntax":
        module.write_text("local = 1")
    elif broken == "no grammar":
        module.write_bytes(PLUGIN.read_bytes())
    controller = Controller(lua, hook_text(module, tmp_path))
    refused = controller.submit(SCRIPT)
    assert refused.rc == -1
    assert refused.said == ["the Synergy plugin could not be loaded; tell your admins, or drop the #SYNERGY lines"]
    assert any("synergy: not loaded: " in line for line in refused.logged)
    assert controller.submit("#!/bin/sh\nsrun x\n").rc == 0
    assert controller.submit(None).rc == 0
    assert controller.modify("synergy:1 tp=2", requeue=0.0).rc == 0


def test_a_deadline_that_can_not_be_met_is_told_and_refused_only_where_the_admin_says_so(slurm: Controller) -> None:
    now = int(time.time())
    for deadline, begin, why in (
        (now - 10, 0.0, "it has passed"),
        (now + 1000, now + 2000.0, "--begin is not before it"),
    ):
        script = SCRIPT.replace("max_gpus=16", f"max_gpus=16 deadline={deadline}")
        told = f"#SYNERGY in script line 2: deadline={deadline} can't be met: {why}; write a later one, or drop it"
        outcome = slurm.submit(script, begin_time=begin)
        assert (outcome.rc, outcome.said) == (0, [told])
        assert "deadline=" in outcome.job["admin_comment"]
        slurm.configure(refuse_late=True)
        outcome = slurm.submit(script, begin_time=begin)
        assert (outcome.rc, outcome.said) == (-1, [told]) and "admin_comment" not in outcome.job
        slurm.configure(refuse_late=False)
    later = SCRIPT.replace("max_gpus=16", f"max_gpus=16 deadline={now + 1000}")
    for begin in (0.0, now + 500.0, 4294967294.0):
        assert slurm.submit(later, begin_time=begin).said == []
