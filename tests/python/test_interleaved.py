# SPDX-License-Identifier: Apache-2.0
"""bench/interleaved.py: which rounds count, and in which order the sides go."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import interleaved  # noqa: E402


def probes_of(**rates):
    """Probes that give these rates one after the other, the last for ever."""

    def reader(values):
        values = list(values)
        return lambda: values.pop(0) if len(values) > 1 else values[0]

    return {name: reader(values) for name, values in rates.items()}


def sides_of(log, **seconds):
    def side(name, value):
        def call():
            log.append(name)
            return value

        return call

    return {name: side(name, value) for name, value in seconds.items()}


def test_rounds_rotate_and_stop_when_enough_are_kept():
    log = []
    rounds = interleaved.measure(sides_of(log, a=1.0, b=2.0, c=3.0), probes_of(vector=[10.0]), 4)
    assert "".join(log) == "abc" "bca" "cab" "abc"
    assert len(rounds) == 4 and interleaved.medians(rounds) == {"a": 1.0, "b": 2.0, "c": 3.0}


def test_a_round_beside_a_slow_probe_is_dropped_for_all_sides():
    probes = probes_of(vector=[10.0, 10.0, 8.9, 10.0, 9.0, 9.5])
    rounds = interleaved.measure(sides_of([], a=1.0, b=2.0), probes, 3)
    # the slow reading is after the second round and before the third
    assert len(rounds) == 5
    assert interleaved.kept(rounds) == [rounds[i] for i in (0, 3, 4)]


def test_every_probe_of_the_cell_counts():
    slow_at_times = [10.0, 5.0, 5.0, 5.0] * 10
    rounds = interleaved.measure(sides_of([], a=1.0), probes_of(vector=[10.0], read=slow_at_times), 2)
    assert len(rounds) == interleaved.MOST_ROUNDS * 2 and not interleaved.kept(rounds)


def test_earlier_rounds_are_judged_again_when_the_machine_wakes_up():
    probes = probes_of(vector=[5.0, 5.0, 5.0, 10.0])
    slow = interleaved.measure(sides_of([], a=2.0), probes, 2)
    assert len(interleaved.kept(slow)) == 2
    rounds = interleaved.measure(sides_of([], a=1.0), probes, 3, slow)
    assert interleaved.medians(interleaved.kept(rounds)) == {"a": 1.0}


def test_one_lucky_reading_of_many_does_not_drop_the_others():
    probes = probes_of(vector=[10.0] * 10 + [13.0] + [10.0])
    rounds = interleaved.measure(sides_of([], a=1.0), probes, 18)
    assert len(rounds) == len(interleaved.kept(rounds)) == 18


def test_median_is_of_the_rounds_given():
    rounds = [interleaved.Round({"a": seconds}, {}, {}) for seconds in (3.0, 1.0, 9.0)]
    assert interleaved.medians(rounds) == {"a": 3.0}


def test_a_burst_goes_through_its_caches_in_turn(monkeypatch):
    log, now = [], [0.0]

    def call(name):
        def run():
            log.append(name)
            now[0] += 0.25

        return run

    monkeypatch.setattr(interleaved.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(interleaved.time, "sleep", lambda seconds: log.append("pause"))
    burst = interleaved.Burst([call("x"), call("y"), call("z")], 1.0)
    assert log == ["x", "y"]
    log.clear()
    assert burst() == pytest.approx(0.25)
    assert log == ["pause", "z", "x", "y", "z", "x"]  # one that wakes the threads, four that count
    log.clear()
    long = interleaved.Burst([call("x")], 0.1)
    log.clear()
    long()
    assert log == ["pause", "x"]
