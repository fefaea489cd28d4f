"""A site of one cluster and its daemon; an arbiter on a port of its own, and jobs' gates to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.wire.link_protocol import Hello
from synergy_launch.links import link_gate
from synergy_launch.links.link_gate import LinkGate

from synergyd.daemon.links.arbiter import LinkArbiter, listen
from synergyd.links.arbiter import ArbiterTerms
from synergyd.links.disciplines import make_discipline
from tests.unit.daemon.daemon_world import Site
from tests.unit.daemon.links.link_arbiter_world import (
    BOUND_S,
    MEMBERS,
    decode,
    encode,
    made_gate,
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def arbiter() -> Iterator[LinkArbiter]:
    terms = ArbiterTerms(make_discipline("ada-srsf"), bound_s=BOUND_S)
    made = LinkArbiter(listen("127.0.0.1", 0), terms, decode=decode, encode=encode)
    made.follow(MEMBERS)
    yield made
    made.close()


@pytest.fixture
def gates(arbiter: LinkArbiter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LinkGate]]:
    monkeypatch.setattr(link_gate, "ANSWER_S", 0.8)  # a busy machine is no slow arbiter; below BOUND_S
    made: list[LinkGate] = []

    def gate(job_id: int, channel: int = 0, **changes: object) -> LinkGate:
        hello = replace(Hello(job_id, 0, MEMBERS[job_id].nodes, channel), **changes)  # type: ignore[arg-type]
        made.append(made_gate(arbiter.port, hello))
        return made[-1]

    yield gate
    for each in made:
        each.close()
