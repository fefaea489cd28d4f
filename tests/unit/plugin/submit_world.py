"""slurmctld's side of slurm_plugins/synergy.lua: a Lua state, and a stand-in for Slurm's tables.

The stand-in's fields and unset values are those of job_submit/lua in Slurm 22.05: setting a field that Slurm does not
know fails here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.plugin.lua_runtimes import PLUGIN, literal, runtime

HOOK = PLUGIN.with_name("job_submit.hook.lua")
STAND_IN = b"""
local values, environment, log = ...
local known = {script=1, admin_comment=1, comment=1, requeue=1, begin_time=1, array_inx=1, het_job_offset=1,
  tres_per_node=1, tres_per_job=1, tres_per_socket=1, tres_per_task=1, ntasks_per_node=1, ntasks_per_tres=1, name=1,
  num_tasks=1, min_nodes=1, max_nodes=1, cpus_per_task=1, cpus_per_tres=1, ntasks_per_socket=1, ntasks_per_core=1,
  bitflags=1, licenses=1, contiguous=1, sockets_per_node=1, cores_per_socket=1}
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
