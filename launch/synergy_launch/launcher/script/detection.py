"""What the launcher knows of a script before it runs: its trainer, checkpoint and batch, and what can change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from synergy_launch.launcher.script import kind as script_kind
from synergy_launch.launcher.script.kind import ScriptKind
from synergy_launch.megatron_lm import options

# the adapter to use in a script whose loop can't be hooked from outside
_LOOP = "loop= where it saves and loads its own checkpoint, "
_TO_DO = {
    script_kind.DEEPSPEED: "DeepSpeedTask of synergy_launch.deepspeed",
    script_kind.ACCELERATE: f"{_LOOP}or AcceleratedTask of synergy_launch.huggingface",
    script_kind.TORCH: f"{_LOOP}or SynergyTask of synergy_launch",
    script_kind.TORCHTITAN: "SynergyTask of synergy_launch, which takes the same models",
}
_WHY = {
    script_kind.TORCHTITAN: "its data loader's place depends on dp",
    script_kind.DEEPSPEED: "a checkpoint of deepspeed.initialize loads on as many GPUs alone",
}
_TRAINER_BATCH = ("--per_device_train_batch_size", "--gradient_accumulation_steps")
_TRAINER_DEFAULTS = (8, 1)  # transformers 5's TrainingArguments


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What is known of a script, in words. `to_do`: what lets it change size; "" where it can or nothing is known."""

    kind: ScriptKind
    trainer: str
    checkpoint: str
    batch: str
    can_change: str
    to_do: str = ""


def detect(
    command: Sequence[str],
    *,
    gpus: int,
    checkpoint: str = "",
    loop: str = "",
    global_batch: str = "",
    resize: bool = True,
) -> Detection:
    """Return what is known of a command (a script's path, or `-m` and a module, and its arguments) on `gpus` GPUs.

    The rest are values of the directive.
    """
    is_module = command[0] == "-m"
    script, arguments = (f"module:{command[1]}", command[2:]) if is_module else (command[0], command[1:])
    kind = script_kind.classify_script(script, arguments)
    folder = checkpoint or _folder(kind, arguments)
    can_change, to_do = _changes(kind, folder, loop)
    if not resize:
        can_change, to_do = "nothing: resize=no", ""
    return Detection(
        kind=kind, trainer=_trainer(kind, script), checkpoint=_checkpoint(kind, folder, loop),
        batch=_batch(kind, arguments, gpus, loop, global_batch), can_change=can_change, to_do=to_do,
    )  # fmt: skip


def _trainer(kind: ScriptKind, script: str) -> str:
    name = script.removeprefix("module:")
    if not kind.where:
        return f"unknown: {name} is not here, or can't be read"
    where = "" if kind.where in (script, name) else f", by {Path(kind.where).name}"
    return f"{kind.trainer}{where}{', with an adapter of Synergy' if kind.has_adapter else ''}"


def _folder(kind: ScriptKind, arguments: Sequence[str]) -> str:
    names = {script_kind.MEGATRON: "--save", script_kind.TRAINER: "--output_dir"}
    return _last(arguments, names[kind.trainer]) if kind.trainer in names else ""


def _last(arguments: Sequence[str], name: str) -> str:
    return (options.option_values(arguments, name) or [""])[-1]


def _checkpoint(kind: ScriptKind, folder: str, loop: str) -> str:
    if kind.trainer == script_kind.TRAINER and not kind.has_adapter:
        return f"Trainer's own, {folder or 'output_dir'}/checkpoint-N"
    if loop:
        return f"the script's own, in {folder or '(checkpoint= is missing)'}"
    return folder or "no folder is named"


def _batch(kind: ScriptKind, arguments: Sequence[str], gpus: int, loop: str, directive_batch: str) -> str:
    source = f"{directive_batch} by the directive; " if directive_batch else ""
    if kind.trainer == script_kind.MEGATRON:
        own = _last(arguments, "--global-batch-size")
        return f"{source}{own or 'one micro-batch a replica'} by the script"
    if kind.trainer == script_kind.TRAINER:
        values = [_last(arguments, name) for name in _TRAINER_BATCH]
        if all(value.isdecimal() or not value for value in values):
            each, passes = (int(v) if v else d for v, d in zip(values, _TRAINER_DEFAULTS, strict=True))
            by = "" if any(values) else " unless the script says otherwise"
            return f"{source}{each} a GPU x {passes} x {gpus} GPUs = {each * passes * gpus}{by}"
    kinds, _, name = loop.partition(",")[0].partition(":")
    if kinds == "global":
        return f"{source}the script shares out {name} over its GPUs"
    if kinds == "gpu":
        value = _last(arguments, name)
        if value.isdecimal():
            return f"{source}{name} {value} x {gpus} GPUs = {int(value) * gpus}"
        return f"{source}{name} x {gpus} GPUs"
    return f"{source}the script's own"


def _changes(kind: ScriptKind, folder: str, loop: str) -> tuple[str, str]:
    """Return what can change, and what would let more change."""
    if kind.trainer == script_kind.MEGATRON:
        if not folder:
            return (
                "nothing: without a checkpoint folder it can't go on",
                "--save DIR, or checkpoint=DIR in the directive",
            )
        return "tp, pp, dp and the batch, with no line changed", ""
    if kind.has_adapter:
        return "what its adapter can, once a run has reported", ""
    if kind.trainer == script_kind.LIGHTNING:
        return "dp and the batch, with no line changed, if fit(...) gets a DataLoader", ""
    if kind.trainer == script_kind.TRAINER:
        return "dp and the batch, with no line changed", ""
    if loop:
        return "dp, at the script's own checkpoints; the batch stays", ""
    if not kind.where:
        return "nothing is known", ""
    why = kind.obstacle or _WHY.get(kind.trainer, "no agent is in it")
    return f"nothing: {why}, so the job keeps its size", _to_do(kind)


def _to_do(kind: ScriptKind) -> str:
    """Return what lets a script change size: an adapter, or the `loop=` that its arguments suggest."""
    text = _TO_DO.get(kind.trainer, "")
    if kind.obstacle or "loop=" not in text:
        return text if not kind.obstacle else text.replace(_LOOP, "").removeprefix("or ")
    if not kind.batch_option:
        return text
    resume = f",resume:{kind.resume_option}" if kind.resume_option else ""
    return text.replace(_LOOP, f"loop=gpu:{kind.batch_option}{resume} if that is the batch of one GPU, ")
