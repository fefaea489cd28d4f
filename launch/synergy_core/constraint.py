"""Slurm's --constraint: features that a job's nodes must have, as far as placement can honour them. Pure."""

from __future__ import annotations

import re
from collections.abc import Container
from functools import lru_cache

_DEPTH = 16  # parentheses inside one another
_TOKENS = re.compile(r"[&|()]|[^&|()\[\]*:,!\s]+")
_NOT_OURS = re.compile(r"[\[\]*:,!\s]")  # counts (ib*2), one of several ([a|b]), additions of other releases

# a feature's name, or (& or |, the joined parts)
Constraint = str | tuple[str, tuple["Constraint", ...]]


def has_features(text: str, features: Container[str]) -> bool:
    """Return whether a node with `features` meets the --constraint `text`.

    "" asks for nothing; a constraint that can't be honoured is met by no node.
    """
    if not text:
        return True
    constraint = parse_constraint(text)
    return constraint is not None and _is_met(constraint, features)


def constraint_obstacle(text: str) -> str:
    """Return why placement can't honour this --constraint, or ""."""
    if not text or parse_constraint(text) is not None:
        return ""
    return f"its --constraint={text} is more than names joined by & or by |, in parentheses where both are"


@lru_cache(maxsize=4096)
def parse_constraint(text: str) -> Constraint | None:
    """Return the constraint, or None if it is one that placement can't honour.

    That is one that counts nodes, chooses one of several for all nodes, or joins by both & and | at one level: Slurm goes from left to
    right there, where others would take & first.
    """
    if _NOT_OURS.search(text):
        return None
    tokens = _TOKENS.findall(text)
    try:
        constraint, rest = _parse_alternatives(tokens, 0, 0)
    except _NotHonouredError:
        return None
    return constraint if rest == len(tokens) else None


class _NotHonouredError(Exception):
    """The text is not a constraint that placement honours."""


def _parse_alternatives(tokens: list[str], at: int, depth: int) -> tuple[Constraint, int]:
    """Return (the constraint from token `at` on, the position of the token behind it)."""
    parts, by = [], ""
    while True:
        part, at = _parse_operand(tokens, at, depth)
        parts.append(part)
        if at == len(tokens) or tokens[at] not in ("&", "|"):
            return (parts[0] if len(parts) == 1 else (by, tuple(parts))), at
        if by not in ("", tokens[at]):
            raise _NotHonouredError
        by, at = tokens[at], at + 1


def _parse_operand(tokens: list[str], at: int, depth: int) -> tuple[Constraint, int]:
    if at == len(tokens) or depth > _DEPTH or tokens[at] in ("&", "|", ")"):
        raise _NotHonouredError
    if tokens[at] != "(":
        return tokens[at], at + 1
    constraint, at = _parse_alternatives(tokens, at + 1, depth + 1)
    if at == len(tokens) or tokens[at] != ")":
        raise _NotHonouredError
    return constraint, at + 1


def _is_met(constraint: Constraint, features: Container[str]) -> bool:
    if isinstance(constraint, str):
        return constraint in features
    met = (_is_met(part, features) for part in constraint[1])
    return all(met) if constraint[0] == "&" else any(met)
