"""What an epoch may decide about a job, by its time limit and the cluster's reservations; and the last checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.job_report import Report
from synergy_core.records import Directive, Job, JobState, Shape

from synergyd.control.resize.events import Wanted
from synergyd.control.resize.instructions import AskCheckpoint
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.resize.walltime import Walltime
from synergyd.control.reviews import review_time
from synergyd.control.state.time_view import Reservation, with_time_left
from synergyd.control.tracked import Remember, TrackedJob

NOW = 10_000.0
HOUR = 3600.0
LEAD_S = 400.0
SHAPE = Shape("a100", 1, 4)


def job(state: JobState = JobState.PENDING, **changes: object) -> Job:
    nodes = ("n1",) if state is JobState.RUNNING else ()
    made = Job(
        job_id=1, name="train", user="ann", uid=1000, partition="main", state=state, reason="", submit_s=0.0, start_s=None,
        begin_s=None, restarts=0, shape=SHAPE, asked=SHAPE, node_names=nodes, directive=Directive(),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def maint(in_s: float, *nodes: str, name: str = "maint", lasts_s: float = HOUR) -> Reservation:
    return Reservation(name, NOW + in_s, NOW + in_s + lasts_s, frozenset(nodes or ("n1", "n2")))


def seen(made: Job, walltime: Walltime, *reservations: Reservation) -> Job:
    return with_time_left(made, walltime, reservations, NOW, lead_s=LEAD_S, restart_s=60.0)


# -- reservations ------------------------------------------------------------------------------------------------------


def test_a_job_that_would_cross_a_reservation_is_barred_from_its_nodes() -> None:
    found = seen(job(time_limit_s=600.0), Walltime(), maint(500.0, "n1"))
    assert found.barred == ("n1",)
    assert found.barred_why == " The reservation maint takes n1 in 8 min, and the job may run for 10 min."
    assert seen(job(time_limit_s=480.0), Walltime(), maint(500.0)).barred == ()
    assert seen(job(time_limit_s=None), Walltime(), maint(500.0)).barred == ("n1", "n2")
    assert seen(job(time_limit_s=HOUR), Walltime(left_s=480.0), maint(500.0)).barred == ()


def test_a_reservation_that_has_begun_bars_and_one_that_is_over_does_not() -> None:
    found = seen(job(time_limit_s=60.0), Walltime(), maint(-10.0))
    assert found.barred_why == " The reservation maint has n1, n2 for another 60 min."
    assert seen(job(time_limit_s=60.0), Walltime(), maint(-2 * HOUR)).barred == ()


def test_of_many_nodes_a_few_are_named() -> None:
    found = seen(job(), Walltime(), maint(500.0, *(f"n{i}" for i in range(9))))
    assert "takes n0, n1, n2 and 6 more in 8 min, and the job has no time limit" in found.barred_why


@pytest.mark.parametrize(("ends_in_s", "barred"), [(430.0, ()), (450.0, ("n1", "n2"))])
def test_a_running_job_is_barred_where_its_restart_would_wait(ends_in_s: float, barred: tuple[str, ...]) -> None:
    found = seen(job(JobState.RUNNING), Walltime(ends_s=NOW + ends_in_s), maint(500.0))
    assert found.barred == barred and found.cut_s is None


def test_a_running_job_that_a_reservation_cuts_short_knows_when() -> None:
    assert seen(job(JobState.RUNNING), Walltime(ends_s=NOW + 900), maint(500.0)).cut_s == NOW + 500
    assert seen(job(JobState.RUNNING), Walltime(ends_s=NOW + 900), maint(500.0, "n2")).cut_s is None


def test_one_that_began_over_a_running_job_may_end_it_at_any_time() -> None:
    runs = job(JobState.RUNNING, start_s=NOW - 100)
    found = seen(runs, Walltime(ends_s=NOW + 900), maint(-5.0))
    assert (found.cut_s, found.free_again_s, found.cut_why) == (NOW - 5, None, "the reservation maint has its nodes")
    both = seen(runs, Walltime(ends_s=NOW + 900), maint(-5.0), maint(300.0, name="next"))
    assert (both.cut_s, both.free_again_s) == (NOW + 300, NOW + 300 + HOUR)
    # one that began before the job did is none that takes its nodes
    assert seen(runs, Walltime(ends_s=NOW + 900), maint(-200.0)).cut_s is None
    one = tracked(Walltime(asked_s=HOUR, ends_s=NOW + HOUR), cut_s=NOW - 5, cut_why=found.cut_why)
    told = review_time(one, NOW, LEAD_S)
    assert isinstance(told, list) and isinstance(told[0], Remember)
    assert told[0].story == ("checkpoint asked for: the reservation maint has its nodes",)
    assert review_time(one, NOW + 60, LEAD_S) == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5000, 5000), st.floats(1, 5000), st.sampled_from(["n1", "n2", "n3"])), max_size=5),
    st.none() | st.floats(0, 5000),
)
def test_where_it_may_start_no_reservation_begins_before_it_ends(
    times: list[tuple[float, float, str]], limit_s: float | None
) -> None:
    reservations = [maint(a, node, lasts_s=b) for a, b, node in times]
    found = seen(job(time_limit_s=limit_s), Walltime(), *reservations)
    for r in reservations:
        if not r.nodes & set(found.barred) and r.end_s > NOW:
            assert limit_s is not None and NOW + limit_s <= r.start_s


# -- near its end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("continues", "words"), [(0, "a restart would not pay any more"), (1, "goes on with a new")])
def test_a_job_near_its_end_is_not_resized(continues: int, words: str) -> None:
    walltime = Walltime(asked_s=HOUR, ends_s=NOW + 450, continues=continues)
    assert words in seen(job(JobState.RUNNING), walltime).fixed
    assert seen(job(JobState.RUNNING), replace(walltime, ends_s=NOW + 500)).fixed == ""


def test_the_time_left_is_none_where_the_limit_begins_anew() -> None:
    walltime = Walltime(asked_s=HOUR, ends_s=NOW + 1800, continues=1)
    assert seen(job(JobState.RUNNING), walltime).time_left_s is None
    assert seen(job(JobState.RUNNING), replace(walltime, continuations=1)).time_left_s == 1800.0


def tracked(walltime: Walltime, **changes: object) -> TrackedJob:
    life = JobLifecycle(1, 0.0, ResizeState.RUNNING, walltime=walltime)
    return TrackedJob(lifecycle=life, job=job(JobState.RUNNING, **changes), report=Report(1, 0, 5))


def test_a_checkpoint_is_asked_for_once_before_the_limit() -> None:
    one = tracked(Walltime(asked_s=HOUR, ends_s=NOW + 400))
    assert review_time(one, NOW - 1, LEAD_S) == []
    told = review_time(one, NOW, LEAD_S)
    assert isinstance(told, list) and [type(x) for x in told] == [Remember, AskCheckpoint]
    assert review_time(one, NOW + 60, LEAD_S) == []
    one.lifecycle = replace(
        one.lifecycle, walltime=Walltime(asked_s=HOUR, ends_s=NOW + HOUR)
    )  # an admin put the end off
    assert review_time(one, NOW + 60, LEAD_S) == []
    assert review_time(one, NOW + HOUR - 300, LEAD_S) != []


def test_a_checkpoint_is_asked_for_before_a_reservation_cuts_the_job() -> None:
    one = tracked(Walltime(asked_s=HOUR, ends_s=NOW + HOUR), cut_s=NOW + 300)
    told = review_time(one, NOW, LEAD_S)
    assert isinstance(told, list) and isinstance(told[0], Remember)
    assert told[0].story == ("checkpoint asked for before a reservation takes its nodes",)


def test_where_the_limit_begins_anew_the_job_is_restarted_as_it_is() -> None:
    one = tracked(Walltime(asked_s=HOUR, ends_s=NOW + 400, continues=1))
    (told,) = review_time(one, NOW, LEAD_S)
    assert isinstance(told, Wanted) and told.target == told.present and told.target.nodes == ("n1",)
    over = tracked(Walltime(asked_s=HOUR, ends_s=NOW + 400, continues=1, continuations=1))
    assert not any(isinstance(o, Wanted) for o in review_time(over, NOW, LEAD_S))
    paused = tracked(Walltime(asked_s=HOUR, ends_s=NOW + 400, continues=1), paused=True)
    assert not any(isinstance(o, Wanted) for o in review_time(paused, NOW, LEAD_S))


def test_a_job_that_could_not_answer_is_left_to_slurm() -> None:
    one = tracked(Walltime(asked_s=HOUR, ends_s=NOW + 400, continues=1))
    one.report = None
    assert review_time(one, NOW, LEAD_S) == []


# -- inside a reservation ----------------------------------------------------------------------------------------------


def mine(from_s: float = -10.0, until_s: float = HOUR, **changes: object) -> Reservation:
    made = Reservation("mine", NOW + from_s, NOW + until_s, frozenset({"n2", "n3"}))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_job_in_a_reservation_may_have_its_nodes_alone_and_others_none() -> None:
    found = with_time_left(
        job(reservation="mine"),
        Walltime(),
        [mine(), maint(-10, "n4")],
        NOW,
        reserved=frozenset({"n2", "n3", "n4", "n5"}),
    )
    assert (found.within, found.barred, found.directive) == (("n2", "n3"), ("n4", "n5"), Directive())
    assert "n4, n5" not in found.barred_why and " n5 is in a reservation of others." in found.barred_why
    assert "Its reservation mine has n2, n3 for another 60 min." in found.barred_why
    other = with_time_left(job(), Walltime(), [mine()], NOW, reserved=frozenset({"n2", "n3", "n4"}))
    assert (other.within, other.barred) == ((), ("n2", "n3", "n4"))


def test_its_reservation_ends_a_job_unless_it_is_flexible() -> None:
    runs = job(JobState.RUNNING, reservation="mine", node_names=("n2",))
    found = seen(runs, Walltime(ends_s=NOW + 2 * HOUR), mine())
    assert (found.cut_s, found.time_left_s, found.free_again_s) == (NOW + HOUR, HOUR, None)
    assert found.cut_why == "its reservation mine ends" and not found.fixed
    assert seen(runs, Walltime(ends_s=NOW + 900), mine()).cut_s is None
    assert seen(runs, Walltime(), mine(ends_jobs=False)).cut_s is None
    near = seen(runs, Walltime(ends_s=NOW + 2 * HOUR), mine(until_s=450.0))
    assert near.fixed == "its reservation mine ends in 8 min, and a restart would not pay any more"


@pytest.mark.parametrize(
    ("reservations", "why"),
    [
        ([], "Slurm shows none of this name"),
        ([mine(from_s=300.0)], "it begins in 5 min"),
        ([mine(until_s=-1.0)], "it has ended"),
        ([mine(holds="a part of its nodes' CPUs is reserved")], "a part of its nodes' CPUs is reserved"),
    ],
)
def test_one_whose_nodes_can_t_be_named_is_left_to_slurm(reservations: list[Reservation], why: str) -> None:
    waits = seen(job(reservation="mine"), Walltime(), *reservations)
    assert waits.directive is None
    assert waits.directive_error == f"Synergy leaves the job to Slurm: it is in the reservation mine, and {why}"
    runs = seen(job(JobState.RUNNING, reservation="mine"), Walltime(), *reservations)
    assert runs.fixed == f"it is in the reservation mine: {why}" and runs.directive is not None
