"""Which training loop a script has, as far as its text and that of the modules beside it say.

Nothing is imported or run. The launcher decides by it which hooks it puts around a script, and `synergyctl check` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from synergy_launch.megatron_lm import arguments as megatron_arguments

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


@dataclass(frozen=True, kw_only=True)
class ScriptKind:
    """The loop of a script. `has_adapter`: it uses Synergy's adapter itself. `where`: the file that says so."""

    trainer: str = UNKNOWN
    has_adapter: bool = False
    where: str = ""


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
            return ScriptKind(trainer=trainer, has_adapter=has_adapter, where=roots[root])
    return ScriptKind(has_adapter=has_adapter, where=script if texts else "")


def is_hooked(script: Sequence[str], style: str, loop: str) -> bool:
    """Return whether this script (its name and arguments), in a job of Synergy's, gets Synergy's adapter from outside.

    `loop`: the directive's `loop=`, "" without.
    """
    kind = classify_script(script[0], script[1:], style)
    return not kind.has_adapter and kind.trainer != MEGATRON and (kind.trainer in HOOKED or bool(loop))


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
            if (found := _module_path(folder, name.lstrip(b".").decode(errors="replace"))) is not None:
                waiting.append(found)
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
