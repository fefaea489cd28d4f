"""A reservation takes nodes of a running job: it is shrunk, moved or left alone, whatever ends it soonest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from synergy_core.records import Action, Decision, Job

from synergyd.scheduler.cut_short import Window
from synergyd.scheduler.problem.records import Progress
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, cell, job, node, snapshot
from tests.unit.scheduler.test_decide import run

# 4 GPUs on one node, 8 on two
WIDE = (cell(3.6, gpus=4), cell(6.0, nodes=2, gpus=4))
SETTINGS = Settings(restart_cost_s=60.0)  # its last checkpoint is asked for 420 s before the window
HOUR = 3600.0


def cut(
    in_s: float, *barred: str, lasts_s: float = HOUR, nodes: tuple[str, ...] = ("n0", "n1"), **changes: object
) -> Job:
    made = job(
        1, asked=4, nodes=nodes, gpus=4, cut_s=NOW + in_s, free_again_s=NOW + in_s + lasts_s, barred=barred,
        cut_why="the reservation maint takes its nodes",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def decided(made: Job, *more: str, progress: Progress | None = None) -> Decision:
    nodes = [node(name) for name in ("n0", "n1", *more)]
    known = {} if progress is None else {1: progress}
    return run(snapshot(nodes, [made]), {1: WIDE}, SETTINGS, progress=known)[1]


def test_it_shrinks_to_the_nodes_that_stay() -> None:
    found = decided(cut(300, "n0"))
    assert (found.action, found.cell, found.node_names) == (Action.RESIZE, WIDE[0], ("n1",))
    assert "the reservation maint takes its nodes in 300 s" in found.why and "if it were left alone" in found.why
    assert found.relative_goodput == 1.0 and dict(found.worth)


def test_it_moves_where_other_nodes_are_free() -> None:
    found = decided(cut(300, "n0"), "n2")
    assert (found.action, found.cell, found.node_names) == (Action.RESIZE, WIDE[1], ("n1", "n2"))
    assert found.why.startswith("Moves to")


def test_it_is_left_alone_until_its_last_checkpoint_is_near() -> None:
    assert decided(cut(481, "n0")).action is Action.KEEP
    assert decided(cut(480, "n0")).action is Action.RESIZE


def test_it_is_left_alone_where_no_node_is_free_or_the_window_is_short() -> None:
    found = decided(cut(300, "n0", "n1"))
    assert found.action is Action.KEEP
    assert "left alone although the reservation maint takes its nodes: no other nodes are free for it" in found.why
    # 6.0 a second for 400 s, or 3.6 for 400 + 100 - 60 s
    short = decided(cut(400, "n0", lasts_s=100))
    assert short.action is Action.KEEP and "a restart elsewhere would not end it sooner" in short.why


def test_a_job_that_ends_before_the_window_is_left_alone() -> None:
    assert decided(cut(300, "n0"), progress=Progress(remaining=6.0 * 299)).action is Action.KEEP
    assert decided(cut(300, "n0"), progress=Progress(remaining=6.0 * 500)).action is Action.RESIZE
    # what it says of its length was not so
    lied = Progress(remaining=6.0 * 299, is_claim_refuted=True)
    assert decided(cut(300, "n0"), progress=lied).action is Action.RESIZE


def test_its_own_limit_ends_the_gain() -> None:
    """6.0 a second for 300 s, or 3.6 for what is left but 60 s of restart."""
    assert decided(cut(300, "n0", time_left_s=500.0)).action is Action.KEEP
    assert decided(cut(300, "n0", time_left_s=700.0)).action is Action.RESIZE


def test_one_that_may_not_be_resized_is_left_alone() -> None:
    assert decided(cut(300, "n0", fixed="it is paused")).action is Action.KEEP


def test_where_no_restart_pays_it_says_so() -> None:
    late = decided(cut(50, "n0", time_left_s=40.0))
    assert late.action is Action.KEEP and late.why.endswith(": a restart takes longer than the time left.")
    young = cut(300, "n0", restarts=200)  # of 60 s each in 10,000 s
    assert decided(young).why.endswith(": its restarts took as long as it has been there.")


def test_it_grows_no_further_than_others_do() -> None:
    offers = (cell(1.0), cell(1.9, gpus=2), cell(3.6, gpus=4))
    made = cut(50, "n0", nodes=("n0",), shape=offers[0].shape)
    for most, gpus in ((2.0, 2), (0.0, 4)):
        bounded = replace(SETTINGS, max_growth=most)
        moved = run(snapshot([node("n0", gpus=1), node("n1")], [replace(made, restarts=100)]), {1: offers}, bounded)[1]
        assert moved.cell is not None and (moved.node_names, moved.cell.shape.gpus) == (("n1",), gpus)


def test_a_policy_with_a_rule_keeps_its_shape() -> None:
    crius = replace(SETTINGS, policy="crius")
    nodes = [node("n0"), node("n1")]
    assert run(snapshot(nodes, [cut(300, "n0")]), {1: WIDE})[1].action is Action.RESIZE
    assert run(snapshot(nodes, [cut(300, "n0")]), {1: WIDE}, crius)[1].action is Action.KEEP
    moved = run(snapshot([*nodes, node("n2")], [cut(300, "n0")]), {1: WIDE}, crius)[1]
    assert (moved.action, moved.cell, moved.node_names) == (Action.RESIZE, WIDE[1], ("n1", "n2"))


def test_two_jobs_are_not_given_the_same_nodes() -> None:
    first = cut(300, "n0", "n1", nodes=("n0",), shape=replace(WIDE[0].shape))
    second = replace(first, job_id=2, node_names=("n1",))
    nodes = [node(name) for name in ("n0", "n1", "n2")]
    found = run(snapshot(nodes, [first, second]), {1: WIDE[:1], 2: WIDE[:1]}, SETTINGS)
    assert sorted(d.action for d in found.values()) == [Action.KEEP, Action.RESIZE]


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    st.floats(0, 1e4),
    st.floats(0, 1e5),
    st.floats(1, 600),
    st.none() | st.floats(0, 1e6),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
def test_a_change_that_pays_ends_it_no_later(
    cut_s: float, lasts_s: float, cost_s: float, remaining: float | None, now: float, then: float
) -> None:
    """Against an account of the two courses, second by second: on other nodes, then restarted on the present ones."""
    window = Window(cut_s=cut_s, end_s=cut_s + lasts_s, cost_s=cost_s, remaining=remaining)
    work = 1e6 if remaining is None else remaining
    alone = work / now if work <= now * cut_s else window.end_s + cost_s + (work - now * cut_s) / now
    begun = then * max(0.0, window.end_s - cost_s)
    changed = cost_s + work / then if work <= begun else window.end_s + cost_s + (work - begun) / now
    if window.pays(now, then):
        assert changed <= alone + 1e-6
