"""Which launchers of a job train, and what they have been asked for."""

from __future__ import annotations

from synergyd.control.known.launchers import MAX_LAUNCHERS, NO_LAUNCHERS
from synergyd.job_report import Report


def report(name: str, taken: int = 0, *, restarts: int = 0, **said: bool | int) -> Report:
    return Report(7, restarts, 5, checkpoint_requests=taken, launcher=name, **{"listens": True, **said})  # type: ignore[arg-type]


def test_a_job_whose_launchers_have_all_ended_is_not_asked() -> None:
    known = NO_LAUNCHERS.hear(report("0.0", 1))
    assert known.listen and not known.over
    known = known.hear(report("0.0", 1, ended=True))
    assert known.over and not known.listen
    known = known.hear(report("1.0"))  # the script starts another
    assert known.listen and not known.over


def test_a_request_is_met_when_every_step_has_met_it() -> None:
    """Of one step on several nodes the first and the last may report; one of them counts its checkpoints."""
    known = NO_LAUNCHERS.hear(report("0.0", 2, requested=2)).hear(report("0.3", 0)).hear(report("1.0", 1, requested=1))
    assert (known.taken, known.most_taken, known.requested) == (1, 2, 1)
    assert known.hear(report("1.0", 1, ended=True)).taken == 2


def test_a_launcher_that_trains_nothing_yet_and_one_of_an_older_release() -> None:
    assert not NO_LAUNCHERS.hear(report("0.0", silent=True)).reports
    older = NO_LAUNCHERS.hear(report("", listens=False))
    assert not older.listen and not older.over


def test_another_incarnation_begins_anew_and_launchers_are_bounded() -> None:
    known = NO_LAUNCHERS.hear(report("0.0", 4))
    assert known.hear(report("0.0", restarts=1)).taken == 0
    for step in range(3 * MAX_LAUNCHERS):
        known = known.hear(report(f"{step}.0"))
    assert len(known.reports) == MAX_LAUNCHERS
