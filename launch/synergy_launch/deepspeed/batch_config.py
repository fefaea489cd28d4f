"""DeepSpeed's configuration with the batch of Synergy's plan."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError

from synergy_launch.agent.settings import AgentSettings, micro_batch
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.pytorch.mesh import Degrees
from synergy_launch.pytorch.run_plan import run_plan

_MICRO = "train_micro_batch_size_per_gpu"


def with_plan(ds_config: Mapping[str, Any] | str | Path, *, global_batch: int) -> dict[str, Any]:
    """Return a copy of `ds_config` (or of the JSON file of that name) with the plan's batch, for deepspeed.initialize.

    `global_batch` (examples) is what learning rate and steps were chosen for, and the batch where Synergy gave no plan: then in
    micro-batches of up to the configuration's train_micro_batch_size_per_gpu. Ends with one line and exit code 2 where the batch can't be
    divided, or the file can't be read.
    """
    with exit_on_error():
        settings = AgentSettings.from_environment()
        config = _read(ds_config)
        own = config.get(_MICRO)
        most = own if isinstance(own, int) and own > 0 else global_batch
        micro = micro_batch(global_batch, settings.world, most)
        plan = run_plan(settings, Degrees(settings.world), global_batch, micro or 1)
    config["train_batch_size"] = plan.global_batch
    config[_MICRO], config["gradient_accumulation_steps"] = plan.micro_batch, plan.micro_batches
    return config


def _read(ds_config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(ds_config, Mapping):
        return copy.deepcopy(dict(ds_config))
    where, right = f"with_plan: {ds_config}", "a JSON file with DeepSpeed's configuration"
    try:
        config = json.loads(Path(ds_config).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(where, f"can't be read: {error.strerror}", right) from None
    except ValueError:
        raise UsageError(where, "is not JSON", right) from None
    if not isinstance(config, dict):
        raise UsageError(where, "is not an object", right)
    return config
