"""Which training loop a script has, as far as its text and that of the modules beside it say.

Nothing is imported or run. The launcher decides by it which hooks it puts around a script, and `synergyctl check` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.warm_start.client import READ_AT_IMPORT

MEGATRON, TRAINER, LIGHTNING, DEEPSPEED, TORCHTITAN, ACCELERATE, TORCH, UNKNOWN = (
    "Megatron-LM", "Trainer", "Lightning", "DeepSpeed", "TorchTitan", "Accelerate", "a loop of its own", "unknown",
)  # fmt: skip
#: those that get Synergy's adapter with no line changed
HOOKED = (TRAINER, LIGHTNING)
#: the distributions whose versions matter
DISTRIBUTIONS = {
    MEGATRON: ("megatron-core", "torch"),
    TRAINER: ("transformers", "accelerate", "torch"),
    LIGHTNING: ("lightning", "pytorch-lightning", "torch"),
    DEEPSPEED: ("deepspeed", "torch"),
    TORCHTITAN: ("torchtitan", "torch"),
    ACCELERATE: ("accelerate", "torch"),
    TORCH: ("torch",),
    UNKNOWN: (),
}
_READ_BYTES, _MAX_FILES = (
    1 << 18,
    40,
)  # enough for the scripts of 20 public repositories; an imported package is not read
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import|import[ \t]+([\w., \t]+))", re.MULTILINE)
_TRAINER_USE = re.compile(rb"\b(?:\w*Trainer)\s*\(")
_SETS_READ_AT_IMPORT = re.compile(
    rb"(?:environ|putenv)[^\n]*['\"](?:%s)" % b"|".join(re.escape(prefix).encode() for prefix in READ_AT_IMPORT)
)
# the first that is imported names the loop
_LIBRARIES = (
    (b"torchtitan", TORCHTITAN),
    (b"lightning", LIGHTNING),
    (b"pytorch_lightning", LIGHTNING),
    (b"trl", TRAINER),
    (b"deepspeed", DEEPSPEED),
    (b"accelerate", ACCELERATE),
    (b"torch", TORCH),
)


_DISTRIBUTED = re.compile(rb"distributed|DataParallel|fully_shard|\bDDP\b|\bFSDP\b", re.IGNORECASE)
_TORCHRUN = re.compile(rb"""["'](?:LOCAL_RANK|RANK|env://)["']""")
_SPAWNS = re.compile(rb"\b(?:mp|multiprocessing)\.spawn\s*\(")
_SAVES = re.compile(rb"\b(?:async_)?save\w*\s*\(")
_LOADS = re.compile(
    rb"\bload_state_dict\b|\btorch\.load\b|\bdcp\.load\b|\b(?:load|resume|restore)_\w*(?:checkpoint|snapshot|state)"
)
_OPTION = re.compile(rb"""add_argument\(\s*(?:["']-\w["']\s*,\s*)?["'](--[\w-]+)["']""")


@dataclass(frozen=True, kw_only=True)
class ScriptKind:
    """The loop of a script. `has_adapter`: it uses Synergy's adapter itself. `where`: the file that says so.

    Of a loop of its own: why it can't be resized at its own checkpoints (`obstacle`, "" if it may be), and what its arguments are named
    that look like the batch and like the checkpoint to go on from.
    """

    trainer: str = UNKNOWN
    has_adapter: bool = False
    where: str = ""
    obstacle: str = ""
    batch_option: str = ""
    resume_option: str = ""


def classify_script(script: str, arguments: Sequence[str] = (), style: str = "auto") -> ScriptKind:
    """Return the kind of SCRIPT: a path, or `module:` and a name."""
    if style == "megatron" or (style == "auto" and megatron_arguments.is_megatron(arguments)):
        return ScriptKind(trainer=MEGATRON, where=script)
    if script.startswith("module:"):
        name = script.removeprefix("module:")
        if name.startswith("torchtitan."):
            return ScriptKind(trainer=TORCHTITAN, where=script)
        path = _module_path(Path.cwd(), name)
        if name.startswith("synergy_launch.") or path is None:
            return ScriptKind(has_adapter=name.startswith("synergy_launch."), where=script)
        texts = _texts(path, Path.cwd())
    else:
        texts = _texts(Path(script), Path(script).parent)
    imported = {name: path for path, text in reversed(texts.items()) for name in _imports(text)}
    has_adapter = any(name.partition(b".")[0] == b"synergy_launch" for name in imported)
    roots = {name.partition(b".")[0]: path for name, path in imported.items()}
    if b"transformers" in roots and any(_TRAINER_USE.search(text) for text in texts.values()):
        return ScriptKind(trainer=TRAINER, has_adapter=has_adapter, where=roots[b"transformers"])
    for root, trainer in _LIBRARIES:
        if root in roots:
            kind = ScriptKind(trainer=trainer, has_adapter=has_adapter, where=roots[root])
            return (
                _own_loop(kind, tuple(texts.values())) if trainer in (TORCH, ACCELERATE) and not has_adapter else kind
            )
    return ScriptKind(has_adapter=has_adapter, where=script if texts else "")


def _own_loop(kind: ScriptKind, texts: Sequence[bytes]) -> ScriptKind:
    """Return `kind` with what the texts say of the loop's processes and checkpoints."""

    def has(pattern: re.Pattern[bytes]) -> bool:
        return any(pattern.search(text) for text in texts)

    obstacle = ""
    if has(_SPAWNS) and not has(_TORCHRUN):
        obstacle = "it starts its processes itself (mp.spawn)"
    elif kind.trainer == TORCH and not has(_DISTRIBUTED):
        obstacle = "it trains on one GPU (no init_process_group)"
    elif kind.trainer == TORCH and not has(_SAVES):
        obstacle = "it saves no checkpoint"
    elif kind.trainer == TORCH and not has(_LOADS):
        obstacle = "it never loads what it saves"
    options = [match[1].decode() for text in texts for match in _OPTION.finditer(text)]
    batch = next((name for name in options if re.search(r"batch.?size|^--bs$", name)), "")
    resume = next((name for name in options if "resume" in name), "")
    return replace(kind, obstacle=obstacle, batch_option=batch, resume_option=resume)


def is_hooked(script: Sequence[str], style: str, loop: str) -> bool:
    """Return whether this script (its name and arguments), in a job of Synergy's, gets Synergy's adapter from outside.

    `loop`: the directive's `loop=`, "" without.
    """
    kind = classify_script(script[0], script[1:], style)
    return not kind.has_adapter and kind.trainer != MEGATRON and (kind.trainer in HOOKED or bool(loop))


def heavy_imports(script: str, arguments: Sequence[str] = (), style: str = "auto") -> tuple[str, ...]:
    """Return the modules that a training process of SCRIPT may get imported before it is known what it is to do; () for none.

    They take most of its start, and are the same for all scripts. A script that sets what they read as they are imported gets none.
    """
    path: Path | None = Path(script)
    if script.startswith("module:"):
        name = script.removeprefix("module:")
        path = _module_path(Path(__file__).parents[3] if name.startswith("synergy_launch.") else Path.cwd(), name)
    texts = _texts(path, path.parent).values() if path is not None else ()
    if any(_SETS_READ_AT_IMPORT.search(text) for text in texts):
        return ()
    megatron = classify_script(script, arguments, style).trainer == MEGATRON or any(
        b"megatron" in text for text in texts
    )
    ours = any(b"synergy_launch" in text for text in texts)
    optional = (("megatron.core", megatron), ("synergy_launch.pytorch.training", ours))
    return ("numpy", "torch", "torch.distributed.run", *(name for name, needed in optional if needed))


def _texts(path: Path, base: Path) -> dict[str, bytes]:
    """Return the texts of the script and of the modules in its folder that they import, by their paths, the script's first."""
    texts: dict[str, bytes] = {}
    waiting = [path]
    while waiting and len(texts) < _MAX_FILES:
        path = waiting.pop(0)
        if str(path) in texts:
            continue
        try:
            with path.open("rb") as file:
                text = texts[str(path)] = file.read(_READ_BYTES)
        except OSError:
            continue
        for name in _imports(text):
            dots = len(name) - len(name.lstrip(b"."))
            folder = base if not dots else path.parents[min(dots, len(path.parents)) - 1]
            if (module_path := _module_path(folder, name.lstrip(b".").decode(errors="replace"))) is not None:
                waiting.append(module_path)
    return texts


def _imports(text: bytes) -> list[bytes]:
    """Return the modules that the text imports, with dots before those of its own package."""
    names = []
    for match in _IMPORT.finditer(text):
        if match[1] is not None:
            names.append(match[1])
        else:
            names += [part.split()[0] for part in match[2].split(b",") if part.split()]
    return names


def _module_path(folder: Path, name: str) -> Path | None:
    path = folder.joinpath(*name.split(".")) if name else folder
    for candidate in (path.with_suffix(".py") if name else path / "__init__.py", path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None
