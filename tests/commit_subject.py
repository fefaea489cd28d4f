"""The rule for subjects of commits, `area: Verb object`. The hook runs `python -m tests.commit_subject FILE`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST_CHARACTERS = 72
SUBJECT = re.compile(r"[a-z0-9][\w ./-]*: (?P<verb>[A-Z][A-Za-z-]*)(?: \S|$)")
GENERATED = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ?")
# Verbs whose imperative ends like a participle or like a third person.
IMPERATIVES = frozenset(
    ["Bring", "Embed", "Feed", "Need", "Ping", "Proceed", "Seed", "Shed", "Speed", "Spring", "String"]
)
NOT_IMPERATIVES = frozenset(["Made", "Gave", "Took", "Wrote", "Kept", "Got", "Now", "No", "The", "New", "More"])


def subject_problem(subject: str) -> str:
    """Return what is wrong with a commit's subject line, or "" if it is right."""
    if GENERATED.match(subject):
        return ""
    if len(subject) > MOST_CHARACTERS:
        return f"{len(subject)} characters: at most {MOST_CHARACTERS}"
    match = SUBJECT.match(subject)
    if match is None:
        return "not `area: Verb object`, such as `store: Close old files`"
    verb = match["verb"]
    third_person = verb.endswith("s") and not verb.endswith("ss")
    if verb not in IMPERATIVES and (verb in NOT_IMPERATIVES or third_person or verb.endswith(("ed", "ing"))):
        return f"{verb!r} is no imperative: write `Add`, not `Added`, `Adds` or `Adding`"
    return ""


def main(arguments: list[str]) -> int:
    """Check the subject in the file that git names. Return 1 and say why if it is wrong."""
    if len(arguments) != 1:
        print("usage: python -m tests.commit_subject FILE", file=sys.stderr)
        return 2
    lines = [line for line in Path(arguments[0]).read_text().splitlines() if not line.startswith("#")]
    subject = next((line.strip() for line in lines if line.strip()), "")
    problem = subject_problem(subject)
    if problem:
        print(f"commit subject {subject!r}: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
