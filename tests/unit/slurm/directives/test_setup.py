"""The hook's three statements in a site's own job_submit.lua, and lines of slurm.conf."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from synergyd.slurm.directives import setup
from tests.unit.plugin.lua_runtimes import ROOT, runtime

HOOK = (ROOT / "slurm_plugins" / "job_submit.hook.lua").read_text()
SITE = """--[[ Example:
function slurm_job_submit(job_desc, part_list, submit_uid)
--]]
calls = {}
function slurm_job_submit(desc, parts, uid)
  calls[#calls + 1] = "site " .. uid  -- function slurm_job_modify(a, b, c, d)
  return slurm.SUCCESS
end

function slurm_job_modify ( desc, rec, parts, uid )
  calls[#calls + 1] = "modify"
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


def run(script: str, module: Path) -> list[str]:
    """Submits with uid 7 and modifies with uid 8; what the site and the module wrote down."""
    module.write_text(
        "local M = {}\nfunction M.configure() return M end\n"
        "function M.submit(desc, parts, uid) calls[#calls + 1] = 'synergy ' .. desc.name .. parts .. uid; return desc.answer end\n"
        "function M.modify(desc, rec, parts, uid) calls[#calls + 1] = 'synergy ' .. rec .. parts .. uid end\nreturn M\n"
    )
    lua = runtime("lua51")
    if lua is None:
        pytest.skip("lupa is not installed here")
    program = (
        "slurm = {SUCCESS = 0, ERROR = -1}\n" + script.rpartition("return slurm.SUCCESS")[0] + "\n"
        "local no = slurm_job_submit({name = 'j', answer = 0}, 'p', 7) .. slurm_job_submit({name = 'k', answer = 1}, 'p', 7)\n"
        "slurm_job_modify({}, 'r', 'q', 8)\nreturn no .. '|' .. table.concat(calls, '|')\n"
    )
    return str(lua.execute(program.encode()).decode()).split("|")


def test_a_sites_own_script_is_kept_and_runs_after_the_hook(tmp_path: Path) -> None:
    module = tmp_path / 'a "b"\\.lua'
    after, why = setup.merge_scripts(SITE, setup.make_hook(HOOK, str(module), "/var/lib/synergy"))
    assert why == "" and [line for line in SITE.splitlines() if line not in after.splitlines()] == []
    assert run(after, module) == ["0-1", "synergy jp7", "site 7", "synergy kp7", "synergy rq8", "modify"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("synergy = 1\n" + SITE, "uses the names"),
        (
            SITE.replace(
                "function slurm_job_submit(desc, parts, uid)", "slurm_job_submit = function(desc, parts, uid)"
            ),
            "define",
        ),
        (SITE.replace("(desc, parts, uid)", "(desc, parts)"), "other arguments"),
        (SITE.replace("(desc, parts, uid)", "(...)"), "other arguments"),
        (SITE + "\nslurm_job_modify = nil\n", "define"),
        ("", "define"),
    ],
)
def test_what_cannot_be_merged_is_told(script: str, why: str) -> None:
    after, said = setup.merge_scripts(script, HOOK)
    assert after == "" and why in said


def test_the_hook_names_its_places_as_lua_strings(tmp_path: Path) -> None:
    text = setup.make_hook(HOOK, '/a"b\\c', "/state")
    assert '"/a\\"b\\\\c"' in text and 'state_dir = "/state"' in text
    assert setup.MODULE_PATH in HOOK and setup.STATE_DIR in HOOK


def test_a_line_of_slurm_conf() -> None:
    text = "A=1\nJobSubmitPlugins = throttle # was: JobSubmitPlugins=no\nB=2"
    assert setup.with_line(text, 2, "JobSubmitPlugins", "throttle,lua").splitlines()[1] == (
        "JobSubmitPlugins = throttle,lua # was: JobSubmitPlugins=no"
    )
    with pytest.raises(ValueError, match="line 1"):
        setup.with_line(text, 1, "JobSubmitPlugins", "lua")


def test_a_last_line_with_a_backslash_does_not_take_ours_in() -> None:
    assert setup.with_end("NodeName=a \\", ["Include synergy.conf"]) == "NodeName=a \\\n\nInclude synergy.conf\n"


def test_lua_accepts_it() -> None:
    after, _ = setup.merge_scripts(SITE, HOOK)
    checked = subprocess.run(
        ["lua5.3", "-e", "assert(load(io.read('a')))"], input=after, text=True, capture_output=True
    )
    assert checked.returncode == 0, checked.stderr
