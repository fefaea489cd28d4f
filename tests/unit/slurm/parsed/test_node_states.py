"""What a node offers in every state that Slurm 22.05 knows."""

from __future__ import annotations

import pytest

from synergyd.slurm.parsed.node_states import NodeOffer, read_offer, registered_state
from synergyd.slurm.parsed.rows import SlurmNodeRow, node_state
from synergyd.slurm.parsed.snapshot import node_from_row

UP, SHUT = NodeOffer(up=True), NodeOffer()
RESERVED = NodeOffer(up=True, reserved=True)
ASLEEP, WAKING = NodeOffer(wakeable=True), NodeOffer(wakeable=True, waking=True)

# the words in capitals as 22.05.8 prints them; behind each what `man sinfo` says of it, or node_info.h where that does not
STATES = [
    ("IDLE", UP),  # not allocated to any jobs and is available for use
    ("MIXED", UP),  # some of its CPUs ALLOCATED while others are IDLE
    ("ALLOCATED", UP),  # allocated to one or more jobs: nothing is free, by its counts
    ("IDLE+COMPLETING", UP),  # jobs are in the process of COMPLETING: their GPUs are in use still, by its counts
    ("MIXED+COMPLETING", UP),
    ("IDLE+PLANNED", UP),  # planned by the backfill scheduler for a higher priority job
    ("IDLE+CLOUD", UP),  # a cloud node that is up
    ("IDLE+DYNAMIC_NORM", UP),  # registered by slurmd -Z
    ("IDLE+DYNAMIC_FUTURE", UP),  # registered by slurmd -F
    ("IDLE+RESERVED", RESERVED),  # in an advanced reservation and not generally available
    ("MIXED+MAINTENANCE+RESERVED", RESERVED),  # in a reservation with a flag value of "maintenance"
    ("IDLE+RESERVED+PLANNED", RESERVED),
    ("DOWN", SHUT),  # unavailable for use
    ("DOWN+NOT_RESPONDING", SHUT),
    ("IDLE+NOT_RESPONDING", SHUT),  # not responding and will not be allocated any new work
    ("ERROR", SHUT),
    ("UNKNOWN", SHUT),  # the controller has just started
    ("FUTURE", SHUT),  # not fully configured
    ("IDLE+DRAIN", SHUT),  # DRAINED: unavailable for use per system administrator request
    ("MIXED+DRAIN", SHUT),  # DRAINING: currently executing a job, but will not be allocated additional jobs
    ("IDLE+RESERVED+DRAIN", NodeOffer(reserved=True)),
    ("DOWN+DRAIN", SHUT),
    ("IDLE+FAIL", SHUT),  # expected to fail soon and is unavailable for use
    ("ALLOCATED+FAIL", SHUT),  # FAILING: currently executing a job
    ("IDLE+INVALID_REG", SHUT),  # INVAL: did not register correctly with the controller
    ("IDLE+REBOOT_REQUESTED", SHUT),  # a request to reboot this node has been made
    ("DOWN+REBOOT_ISSUED", SHUT),  # sent to the agent configured to handle this request
    ("IDLE+PERFCTRS", SHUT),  # not usable for any other jobs
    ("IDLE+CLOUD+POWERED_DOWN", ASLEEP),  # currently powered down and not capable of running any jobs
    ("IDLE+POWERED_DOWN", ASLEEP),
    ("IDLE+CLOUD+POWERED_DOWN+PLANNED", ASLEEP),
    ("IDLE+CLOUD+POWERED_DOWN+RESERVED", NodeOffer(reserved=True, wakeable=True)),
    ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", WAKING),  # asked to power up a moment ago
    (
        "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP",
        WAKING,
    ),  # in the process of being powered up: tried, Slurm starts jobs there
    ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", WAKING),
    ("IDLE+CLOUD+POWERING_UP", WAKING),
    ("IDLE+CLOUD+POWER_DOWN", SHUT),  # pending power down
    ("IDLE+CLOUD+POWERING_DOWN", SHUT),  # in the process of powering down
    ("IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_DOWN", SHUT),
    ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", SHUT),  # not resumed by ResumeTimeout
    ("IDLE+CLOUD+DRAIN+POWERED_DOWN", SHUT),
    ("IDLE+POWERED_DOWN+NOT_RESPONDING", SHUT),
]
# of other readers and releases
OTHERS = [
    ("maint", RESERVED),
    ("reserved", RESERVED),
    ("planned", UP),
    ("idle~", SHUT),
    ("idle*", SHUT),
    ("reboot", SHUT),
    ("drained", SHUT),
    ("draining", SHUT),
    ("failing", SHUT),
    ("idle+blocked", SHUT),  # 23.02
    ("idle+a_word_of_tomorrow", UP),
    ("tomorrow", SHUT),
]


@pytest.mark.parametrize(("state", "offer"), [*STATES, *OTHERS])
def test_what_a_node_offers(state: str, offer: NodeOffer) -> None:
    assert read_offer(node_state(state)) == offer
    node = node_from_row(SlurmNodeRow("n1", node_state(state), "gpu:a100:4", "", (), (), ""))
    assert NodeOffer(node.up, node.reserved, node.wakeable, node.waking) == offer


@pytest.mark.parametrize(
    ("state", "version", "seen"),
    [
        ("idle", "22.05.8", "idle"),
        ("idle", "", "unknown"),
        ("mixed+planned", "", "unknown"),
        ("down", "", "down"),
        ("idle+drain", "", "idle+drain"),
        ("idle+cloud+powered_down", "", "idle+cloud+powered_down"),
        ("idle+cloud+powering_up", "", "idle+cloud+powering_up"),
    ],
)
def test_a_free_node_that_has_not_registered_is_unknown(state: str, version: str, seen: str) -> None:
    assert registered_state(state, version) == seen


# node_state_base_string and node_state_flag_string of slurm_protocol_defs.c, 22.05.8
BASES = "UNKNOWN DOWN IDLE ALLOCATED ERROR MIXED FUTURE"
FLAGS = (
    "CLOUD COMPLETING DRAIN DYNAMIC_FUTURE DYNAMIC_NORM INVALID_REG FAIL MAINTENANCE POWER_DOWN POWER_UP PERFCTRS POWERED_DOWN "
    "REBOOT_REQUESTED REBOOT_ISSUED RESERVED NOT_RESPONDING PLANNED POWERING_UP POWERING_DOWN"
)


def test_every_word_of_2205_is_in_the_table() -> None:
    assert {word for state, _ in STATES for word in state.split("+")} == {*BASES.split(), *FLAGS.split()}
