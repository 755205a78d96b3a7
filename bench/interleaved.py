# SPDX-License-Identifier: Apache-2.0
"""Sides of a comparison timed in turn: rounds in rotating order, a pause before each side, a probe of the machine
between rounds, and medians of the rounds in which the machine was well (docs/measuring.md, Method)."""
import dataclasses
import statistics
import time

PAUSE = 0.02  # seconds before each side: OpenMP's threads spin for milliseconds after a call
FIT = 0.9  # of a probe's best in a cell: below it, the machine was in a slow state
MOST_ROUNDS = 4  # times the rounds wanted, then a cell is given up


class Burst:
    """Seconds of a call: after the pause, as many calls as last `length` seconds. `calls` are made in turn (each
    has caches of its own)."""

    def __init__(self, calls, length):
        self.calls, self.length, self.next = calls, length, 0
        self.call()
        begin = time.perf_counter()
        self.call()
        self.estimate = time.perf_counter() - begin

    def call(self):
        self.calls[self.next]()
        self.next = (self.next + 1) % len(self.calls)

    def __call__(self):
        time.sleep(PAUSE)
        if self.estimate < self.length:  # wakes the threads; nothing beside a long call
            self.call()
        count = max(1, round(self.length / self.estimate))
        calls = [self.calls[(self.next + i) % len(self.calls)] for i in range(count)]
        self.next = (self.next + count) % len(self.calls)
        begin = time.perf_counter()
        for call in calls:
            call()
        self.estimate = (time.perf_counter() - begin) / count
        return self.estimate


@dataclasses.dataclass
class Round:
    seconds: dict  # side -> seconds of a call
    before: dict  # probe -> rate
    after: dict


def kept(rounds):
    """A round counts for all sides or for none: it is dropped where a reading beside it is below FIT of what one in
    ten readings of the cell reaches. (A best of the whole run would be one lucky second, beside which a machine whose
    clock drifts from minute to minute never looks well again.) Judged again as rounds are added."""
    readings = [reading for round_ in rounds for reading in (round_.before, round_.after)]
    best = {name: sorted((reading[name] for reading in readings), reverse=True)[len(readings) // 10]
            for name in (readings[0] if readings else ())}
    return [round_ for round_ in rounds
            if all(rate >= FIT * best[name]
                   for reading in (round_.before, round_.after) for name, rate in reading.items())]


def measure(sides, probes, wanted, rounds=()):
    """Adds rounds until `wanted` are kept or MOST_ROUNDS times as many were made. sides: name -> function that
    gives seconds; probes: name -> function that gives a rate of the machine."""
    rounds = list(rounds)
    order = list(sides)

    def read():
        return {name: probe() for name, probe in probes.items()}

    before = read()
    for number in range(len(rounds), len(rounds) + MOST_ROUNDS * wanted):
        if len(kept(rounds)) >= wanted:
            break
        turn = number % len(order)
        seconds = {name: sides[name]() for name in order[turn:] + order[:turn]}
        after = read()
        rounds.append(Round(seconds, before, after))
        before = after
    return rounds


def medians(rounds):
    return {name: statistics.median(round_.seconds[name] for round_ in rounds) for name in rounds[0].seconds}
