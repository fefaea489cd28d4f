"""Megatron-LM's log lines of core_v0.12 to core_v0.16, and lines that only look like them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.records import Plan
from synergy_core.wire.report import status_to_report
from synergy_launch.megatron_lm.log_parser import (
    MAX_LINE,
    Log,
    LogLine,
    read_line,
    read_peak_bytes,
    read_saved_iteration,
    split_first_iteration,
)
from synergy_launch.megatron_lm.supervisor import Supervisor

# As training_log() of each version writes them (0.16.1: as it was seen).
GOLDEN = {
    "0.12.3": (
        " [2025-06-01 10:00:00] iteration      200/  500000 | consumed samples:       204800 | "
        "elapsed time per iteration (ms): 1512.3 | throughput per GPU (TFLOP/s/GPU): 401.2 | "
        "learning rate: 1.500000E-05 | global batch size:  1024 | lm loss: 6.512345E+00 | loss scale: 1.0 | "
        "grad norm: 1.234 | num zeros: 17 | params norm: 812.300 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |",
        LogLine(
            iteration=200,
            last=500_000,
            consumed_samples=204_800,
            step_s=1.5123,
            batch=1024,
            loss=6.512345,
            grad_norm=1.234,
            rate=1.5e-5,
        ),
    ),
    "0.13.1": (
        " [2025-08-01 10:00:00] iteration       10/     100 | consumed samples:          320 | skipped samples:           32 | "
        "elapsed time per iteration (ms): 99.5 | energy per GPU (J/iter/GPU): 300.1 | power per GPU (W/GPU): 650.2 | "
        "learning rate: 3.000000E-04 | decoupled learning rate: 1.000000E-04 | global batch size:    32 | "
        "lm loss: 1.031000E+01 | load_balancing_loss: 1.200000E+00 | loss scale: 4096.0 | grad norm: 0.500 | "
        "number of skipped iterations:   2 | number of nan iterations:   1 |",
        LogLine(
            iteration=10,
            last=100,
            consumed_samples=320,
            step_s=0.0995,
            batch=32,
            loss=10.31,
            grad_norm=0.5,
            rate=3e-4,
            skipped_iterations=2,
            nan=1,
        ),
    ),
    "0.14.0": (
        " [2025-10-01 10:00:00] iteration        3/      30 | consumed samples:           48 | "
        "elapsed time per iteration (ms): 250.0 | learning rate: 0.000000E+00 | global batch size:    16 | "
        "loss scale: 1.0 | number of skipped iterations:   3 | number of nan iterations:   3 |",
        LogLine(
            iteration=3,
            last=30,
            consumed_samples=48,
            step_s=0.25,
            batch=16,
            loss=None,
            grad_norm=None,
            rate=0.0,
            skipped_iterations=3,
            nan=3,
        ),  # a loss that is NaN is not printed
    ),
    "0.15.3": (
        " [2025-12-01 10:00:00] iteration 12345678/123456789 | consumed samples: 123456789012 | "
        "elapsed time per iteration (ms): 30000.0 | learning rate: 1.000000E-05 | global batch size: 98304 | "
        "lm loss: 1.700000E+00 | mtp_1 loss: 2.100000E+00 | loss scale: 1.0 | grad norm: 0.031 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
        LogLine(
            iteration=12_345_678,
            last=123_456_789,
            consumed_samples=123_456_789_012,
            step_s=30.0,
            batch=98_304,
            loss=1.7,
            grad_norm=0.031,
            rate=1e-5,
        ),
    ),
    "0.16.1": (
        " [2026-11-21 03:14:34.360411] iteration        3/       8 | consumed samples:           24 | "
        "elapsed time per iteration (ms): 216.7 | throughput per GPU (TFLOP/s/GPU): 0.0 | learning rate: 2.994009E-03 | "
        "global batch size:     8 | lm loss: 5.310274E+00 | loss scale: 1.0 | grad norm: 2.656 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
        LogLine(
            iteration=3,
            last=8,
            consumed_samples=24,
            step_s=0.2167,
            batch=8,
            loss=5.310274,
            grad_norm=2.656,
            rate=2.994009e-3,
        ),
    ),
}
GOOD = GOLDEN["0.16.1"][0]


def line(iteration: int, ms: float = 200.0, loss: float = 5.0, last: int = 100) -> bytes:
    text = GOOD.replace("iteration        3/       8", f"iteration {iteration:8d}/{last:8d}")
    return text.replace("216.7", f"{ms:.1f}").replace("5.310274E+00", f"{loss:.6E}").encode() + b"\n"


@pytest.mark.parametrize("version", GOLDEN)
@pytest.mark.parametrize("prefix", ["", "[default7]:", "3: "])
def test_each_version(version: str, prefix: str) -> None:
    text, expected = GOLDEN[version]
    found = read_line(prefix + text)
    assert found is not None
    assert found.step_s == pytest.approx(expected.step_s)
    assert LogLine(**{**vars(found), "step_s": expected.step_s}) == expected


def test_memory_and_saves() -> None:
    old = (
        "[Rank 3] (after 2 iterations) memory (MB) | allocated: 6789.3125 | max allocated: 12345.5 | "
        "reserved: 13000.0 | max reserved: 13000.0"
    )
    assert read_peak_bytes(old) == int(12345.5 * 2**20)
    new = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.50 | max allocated: 2.25 | reserved: 4.00 | max reserved: 4.00"
    assert read_peak_bytes(new) == int(2.25 * 2**20)
    assert read_saved_iteration("  successfully saved checkpoint from iteration       5 to /ckpt [ t 1/2, p 1/1 ]") == 5
    stamped = (
        "  [2026-11-21 03:14:34.360411] successfully saved checkpoint from iteration      15 to /ckpt [ t 1/1, p 1/1 ]"
    )
    assert read_saved_iteration(stamped) == 15
    assert read_saved_iteration("  successfully saved local checkpoint from iteration       5") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " validation loss at iteration 10 | lm loss value: 5.0E+00 | lm loss PPL: 1.5E+02 | ",
        "iteration 3 of 8",
        "iteration 99999999999999999999/8 |",
        "iteration -3/8 |",
        "iteration 3/8",
        "x" * MAX_LINE + GOOD,
    ],
)
def test_other_lines_say_nothing(text: str) -> None:
    assert read_line(text) is None and read_peak_bytes(text) is None and read_saved_iteration(text) is None


def test_wrong_numbers_count_as_not_said() -> None:
    found = read_line(
        "iteration 3/8 | consumed samples: -4 | elapsed time per iteration (ms): nan | global batch size: 0 | "
        "lm loss: inf | grad norm: 1e999 | number of nan iterations: ² | learning rate: | grad norm: 3"
    )
    assert found == LogLine(iteration=3, last=8)


def test_the_first_two_lines_after_a_start_have_no_steady_time() -> None:
    log = Log()
    for number, ms in enumerate((9000.0, 4500.0, 210.0, 190.0, 200.0), 1):
        log.parse_piece(line(10 * number, ms))
        assert log.step_s == {1: None, 2: None, 3: 0.21}.get(number, pytest.approx(0.2))
    assert log.every == 10 and log.newest is not None and log.newest.iteration == 50
    log.forget_last_start()
    log.parse_piece(line(40, 9000.0))
    assert log.step_s == pytest.approx(0.2)


def test_the_second_line_is_freed_of_the_first() -> None:
    log = Log()
    log.parse_piece(line(7, loss=5.043707))
    # lines of core_v0.16.1: the true losses of iterations 7 to 9 were 5.043707, 4.969214, 4.854689
    (second,) = log.parse_piece(line(8, loss=5.006461))
    assert second.loss == pytest.approx(4.969214, abs=2e-6)
    (third,) = log.parse_piece(line(9, loss=4.854689))
    assert third.loss == 4.854689
    log.forget_last_start()
    assert log.parse_piece(line(10, loss=4.8))[0].loss == 4.8
    assert log.parse_piece(line(20, loss=4.7))[0].loss == pytest.approx((11 * 4.7 - 4.8) / 10)


def test_what_the_first_line_counted_is_counted_once() -> None:
    first, second = (
        LogLine(iteration=1, last=99, skipped_iterations=1),
        LogLine(iteration=10, last=99, loss=4.0, skipped_iterations=3, nan=1),
    )
    assert split_first_iteration(first, second) == LogLine(
        iteration=10, last=99, loss=4.0, skipped_iterations=2, nan=1
    )  # the first was skipped: no loss of it in there
    assert (
        split_first_iteration(
            LogLine(iteration=9, last=99, loss=5.0), LogLine(iteration=10, last=99, loss=5.0, skipped_iterations=1)
        ).loss
        == 5.0
    )  # the second was
    assert (
        split_first_iteration(LogLine(iteration=1, last=99, loss=9.0), LogLine(iteration=2, last=99, loss=4.0)).loss
        == 0.0
    )  # no line of Megatron's
    assert (
        split_first_iteration(LogLine(iteration=10, last=99, loss=9.0), LogLine(iteration=2, last=99, loss=4.0)).loss
        == 4.0
    )


@given(st.lists(st.integers(1, 400), max_size=8))
def test_pieces_of_any_size_give_the_same(cuts: list[int]) -> None:
    whole = b"hello\n" + line(1) + b"\xff\xfe\n" + line(2) + line(3) + b"half a line"
    log, at, found = Log(), 0, []
    for size in [*cuts, len(whole)]:
        found += log.parse_piece(whole[at : at + size])
        at += size
    assert [x.iteration for x in found] == [1, 2, 3]


@given(st.binary(max_size=400), st.integers(0, 30))
def test_a_strangers_bytes_break_nothing(noise: bytes, repeat: int) -> None:
    watch = Supervisor(Plan(), "", 64)
    watch.log.parse_piece(noise * repeat)
    watch.log.parse_piece(b"iteration 3/8 |" + noise.replace(b"\n", b" ") + b"|\n")
    watch.log.parse_piece(line(4))
    status = watch.status()
    if status is not None:
        status_to_report(status, 7, 0)


def test_a_line_without_an_end_is_not_kept() -> None:
    log = Log()
    for _ in range(100):
        log.parse_piece(b"x" * 5000)
        assert len(log._rest) <= MAX_LINE
    log.parse_piece(line(1))  # the end of the long one
    assert log.newest is None
    log.parse_piece(line(2))
    assert log.newest is not None and log.newest.iteration == 2


def test_what_is_reported() -> None:
    watch = Supervisor(Plan(dp=2, micro_batch=4, global_batch=8), "", 64, resharding=True)
    assert watch.status() is None
    for iteration in (1, 2, 3, 4):
        watch.log.parse_piece(line(iteration, loss=6.0 - iteration / 10))
    watch.log.parse_piece(
        b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 4.0 |\n"
    )
    report = status_to_report(watch.status() or {}, 7, 2)
    assert (report.job_id, report.restarts, report.step) == (7, 2, 4) and report.loss == pytest.approx(5.6)
    assert report.step_s == pytest.approx(0.2) and report.tokens == 24 * 64 and report.peak_memory_bytes == 2 << 20
    assert report.plan is not None and report.plan.global_batch == 8 and report.resharding and not report.rebatching
    assert (report.done, report.total) == (24, 24 + 96 * 8)


def test_a_loss_spike_is_told() -> None:
    log = Log()
    for number in range(1, 301):
        log.parse_piece(line(number, loss=2.0 + 0.01 * (number % 7), last=1000))
    log.parse_piece(line(301, loss=9.0, last=1000))
    assert log.spikes.spike is not None and log.spikes.spike.answer == "new"
    for number in range(302, 311):
        log.parse_piece(line(number, loss=9.0 + 0.01 * number, last=1000))
    spike = log.spikes.spike
    assert (spike.step, spike.loss, spike.answer) == (301, 9.0, "own-order")


def test_a_second_loss_spike_is_told_too() -> None:
    log = Log()
    for number in range(1, 301):
        log.parse_piece(line(number, loss=2.0 + 0.01 * (number % 7), last=1000))
    for first in (301, 601):
        for number in range(first, first + 12):
            log.parse_piece(line(number, loss=9.0 + 0.01 * number, last=1000))
        for number in range(first + 12, first + 300):
            log.parse_piece(line(number, loss=2.0 + 0.01 * (number % 7), last=1000))
    spike = log.spikes.spike
    assert spike is not None and (spike.step, spike.answer) == (601, "own-order")
