"""Settings from the environment, and which plans can be run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT, Exchange
from synergy_core.records import Plan
from synergy_launch.agent.settings import AgentSettings, at_own_batch, check_degrees, check_plan, parse_plan


def test_settings_from_the_environment(tmp_path: Path) -> None:
    settings = AgentSettings.from_environment(
        {
            "SYNERGY_RUN_DIR": str(tmp_path),
            "SYNERGY_PLAN_JSON": '{"tp": 2, "dp": 2, "global_batch": 8}',
            "SYNERGY_RESTARTS": "3",
            "SYNERGY_HOLD_S": "1.5",
            "WORLD_SIZE": "4",
            "RANK": "1",
            "SYNERGY_COMM": "local:8",
        }
    )
    assert settings.plan == Plan(tp=2, dp=2, global_batch=8)
    assert (settings.restarts, settings.hold_s, settings.rank, settings.world) == (3, 1.5, 1, 4)
    assert settings.step_log == tmp_path.parent / "steps.jsonl"
    assert settings.exchange == Exchange("local", period=8)
    bare = AgentSettings.from_environment({})
    assert bare.plan is None and bare.exchange == EXACT


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"SYNERGY_RUN_DIR": "/nowhere/here"}, "is not a folder"),
        ({"SYNERGY_HOLD_S": "soon"}, "is not a number"),
        ({"SYNERGY_RESTARTS": "-1"}, "is not a number of 0 or more"),
        ({"SYNERGY_HOLD_S": "nan"}, "is not a number"),
        ({"SYNERGY_COMM": "local"}, "no way to exchange gradients"),
        ({"SYNERGY_PLAN_JSON": "{"}, "not JSON"),
        ({"SYNERGY_PLAN_JSON": "[1]"}, "not an object"),
        ({"SYNERGY_PLAN_JSON": '{"gpus": 2}'}, "unknown field gpus"),
        ({"SYNERGY_PLAN_JSON": '{"tp": 0}'}, "tp=0 can't be used"),
        ({"SYNERGY_PLAN_JSON": '{"tp": true}'}, "tp=True can't be used"),
        ({"SYNERGY_PLAN_JSON": '{"tp": 2}'}, "needs 2 processes, there are 1"),
        ({"SYNERGY_PLAN_JSON": '{"micro_batch": 2}'}, "can't be cut into micro-batches"),
    ],
)
def test_wrong_settings_are_one_clear_line(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        AgentSettings.from_environment(environment)


def test_plan_must_fit() -> None:
    assert parse_plan('{"pp": 2, "global_batch": 4}', 2).pp == 2
    with pytest.raises(UsageError, match="multiple of dp"):
        check_plan(Plan(dp=2, global_batch=3), 2)


def test_a_plan_without_a_shared_optimizer_can_be_run() -> None:
    assert parse_plan('{"dp": 2, "global_batch": 2, "zero_stage": 0}', 2).zero_stage == 0
    with pytest.raises(UsageError, match="zero_stage=-1"):
        parse_plan('{"zero_stage": -1}', 1)


def test_a_script_refuses_degrees_that_it_cannot_take() -> None:
    plan = Plan(tp=2, pp=2, dp=2, global_batch=2)
    assert check_degrees(plan, ("tp", "pp")) is plan
    with pytest.raises(UsageError, match=r"cp=2 was given to a script that can't .* can change tp, pp, dp only"):
        check_degrees(replace(plan, cp=2), ("tp", "pp"))
    with pytest.raises(UsageError, match="vpp=2"):
        check_degrees(replace(plan, vpp=2), ("tp", "pp"))
    with pytest.raises(UsageError, match=r"tp=2 .* can change dp only"):
        check_degrees(plan, ())


def test_a_plan_at_the_scripts_own_batch() -> None:
    plan = Plan(dp=4, micro_batch=8, global_batch=256)
    assert at_own_batch(plan, 24, "here") == Plan(dp=4, micro_batch=6, global_batch=24)
    with pytest.raises(UsageError, match="here: global batch 6 can't be shared out to dp=4"):
        at_own_batch(plan, 6, "here")
