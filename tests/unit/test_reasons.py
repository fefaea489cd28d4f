"""Reasons of decisions: each code has one sentence, and a sentence never fails."""

from __future__ import annotations

import ast
import string
from pathlib import Path

from synergy_core.job_report import SPIKE_ANSWERS
from synergy_core.reasons import SENTENCES, Reason, format_reasons, nest_reason, reason_codes, text_reason

ROOT = Path(__file__).parents[2]


def constructed() -> set[str]:
    """Return the codes that the sources name where they make a reason."""
    found = set()
    for folder in ("synergyd", "launch/synergy_core", "sim"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id == "Reason"
                    and node.args
                ):
                    code = node.args[0]
                    choices = (code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,)
                    found |= {
                        one.value for one in choices if isinstance(one, ast.Constant) and isinstance(one.value, str)
                    }
    return found


def test_each_code_that_is_used_has_a_sentence_and_no_other_does() -> None:
    in_variables = {"grows", "shrinks", "changes", *(f"spike-{answer}" for answer in SPIKE_ANSWERS)}
    assert constructed() | in_variables == set(SENTENCES)


def test_sentences_are_whole() -> None:
    for code, template in SENTENCES.items():
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
        assert all(name.isidentifier() for name in names), code
        assert format_reasons((Reason(code),)) is not None  # nothing is told of it, as by another version


def test_codes_are_found_inside_of_others_and_text_stays_text() -> None:
    inner = Reason("lent-spare", {"jobs": [3], "lost": "n1"})
    assert reason_codes((Reason("gives-back", {"gpus": 2, "because": nest_reason(inner)}),)) == {
        "gives-back",
        "lent-spare",
    }
    assert format_reasons(text_reason("It says {this}.")) == "It says {this}." and text_reason("") == ()
    assert format_reasons((Reason("of-a-newer-version"),)) == "of-a-newer-version."
