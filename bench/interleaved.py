# SPDX-License-Identifier: Apache-2.0
"""Sides of a comparison timed in turn: rounds in rotating order, a pause before each side, a probe of the machine
between rounds, and medians of the rounds in which the machine was well (docs/measuring.md, Method)."""
import dataclasses
import statistics
import time

PAUSE = 0.02  # seconds before each side: OpenMP's threads spin for milliseconds after a call
FIT = 0.9  # of a probe's best: below it, the machine was in a slow state
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


class Probes:
    """Rates of the machine by name, and the best of each so far."""

    def __init__(self, probes):
        self.probes = probes  # name -> function that gives a rate
        self.best = {name: 0.0 for name in probes}

    def read(self, names):
        rates = {name: self.probes[name]() for name in names}
        for name, rate in rates.items():
            self.best[name] = max(self.best[name], rate)
        return rates

    def fit(self, round_):
        return all(rate >= FIT * self.best[name]
                   for reading in (round_.before, round_.after) for name, rate in reading.items())

    def kept(self, rounds):
        """A round counts for all sides or for none. Judged again whenever a best has grown."""
        return [round_ for round_ in rounds if self.fit(round_)]


def measure(sides, probes, names, wanted, rounds=()):
    """Adds rounds until `wanted` are kept or MOST_ROUNDS times as many were made. sides: name -> function that
    gives seconds."""
    rounds = list(rounds)
    order = list(sides)
    before = probes.read(names)
    for number in range(len(rounds), len(rounds) + MOST_ROUNDS * wanted):
        if len(probes.kept(rounds)) >= wanted:
            break
        turn = number % len(order)
        seconds = {name: sides[name]() for name in order[turn:] + order[:turn]}
        after = probes.read(names)
        rounds.append(Round(seconds, before, after))
        before = after
    return rounds


def medians(rounds):
    return {name: statistics.median(round_.seconds[name] for round_ in rounds) for name in rounds[0].seconds}
