"""What the hook of Trainer does with the arguments of scripts for older releases."""

from __future__ import annotations

import functools
from typing import Any

from synergy_launch.auto.trainer_hook import arguments_of


def test_an_argument_that_a_decorator_takes_is_no_error() -> None:
    """As transformers 4 renames Trainer's `tokenizer`."""

    def construct(
        self: Any, model: Any = None, args: Any = None, processing_class: Any = None, callbacks: Any = None
    ) -> None: ...

    @functools.wraps(construct)
    def renamed(self: Any, *args: Any, **kwargs: Any) -> None: ...

    found = arguments_of(renamed, "self", "model", tokenizer="t", args="training", callbacks=["c"])
    assert found == {"self": "self", "model": "model", "args": "training", "callbacks": ["c"]}
