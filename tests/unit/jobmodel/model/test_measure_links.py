"""What sharing a link costs, from timings of one and of two at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError

from synergyd.cli.measure import measure
from synergyd.jobmodel.model.measure import Timing
from synergyd.jobmodel.model.measure_links import PairTimings, link_figures
from synergyd.links.model import TEN_GBE, Link, make_link
from synergyd.settings.types import LINK


def timings(link: Link, nodes: int = 2, latency_s: float = 1e-3) -> PairTimings:
    """As the model says that they come out."""
    ring = 2 * (nodes - 1) / nodes

    def points(sharers: int) -> tuple[Timing, ...]:
        return tuple(Timing(mb * 1e6, latency_s + mb * ring * link.cost(sharers) / 1e3) for mb in (1.0, 4.0, 8.0))

    return PairTimings(nodes, points(1), points(2))


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("link", [TEN_GBE, Link(40.0, 0.0), Link(0.08, 0.06)])
def test_the_figures_are_found_again(link: Link, nodes: int) -> None:
    assert link_figures(timings(link, nodes)) == pytest.approx((link.per_mb, link.penalty), abs=1e-6)


def test_two_that_do_not_meet_are_told() -> None:
    with pytest.raises(UsageError, match="a network port of its own"):
        link_figures(timings(Link(1.0, -0.9)))


def test_what_is_printed_is_what_the_setting_takes() -> None:
    assert LINK.read("10GbE@0.91+0.2") == "10gbe@0.91+0.2" and LINK.read("4xib-hdr@0.01+0") == "4xib-hdr@0.01+0"
    assert make_link("10gbe@0.91+0.2") == Link(0.91, 0.2) == make_link(LINK.read("10gbe@0.910+0.20"))
    for wrong in ("10gbe@", "10gbe@1", "10gbe@0+1", "10gbe@1+-1", "10gbe@nan+1", "10gbe@1e3+1", "tcp@1+1", "@1+1"):
        with pytest.raises(ValueError):
            LINK.read(wrong)
        with pytest.raises(UsageError, match="10gbe@B\\+H"):
            make_link(wrong)


@pytest.mark.parametrize(
    ("options", "environment", "says"),
    [
        (["--pairs"], {}, "needs several nodes with 2 processes each"),
        (["--pairs"], {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, "needs several nodes with 2 processes each"),
        (["--pairs", "--link", "tcp"], {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "--link: no figures for 'tcp'"),
    ],
)
def test_mistakes_are_one_line(options: list[str], environment: dict[str, str], says: str, tmp_path: Path) -> None:
    clean = {"WORLD_SIZE": "", "LOCAL_WORLD_SIZE": ""}
    found = CliRunner().invoke(measure, ["--device", "cpu", *options], env={**clean, **environment})
    assert found.exit_code == 2 and says in found.output and not re.search("Traceback", found.output)
