"""The simulated engine: the real scheduler, KV cache book-keeping and output path under a worker that is a hash, on a
clock and a network that are numbers. One seed decides everything, so a failure can be repeated and made small.

    python -m headrace.simulation --seeds 10000

`generate.py` makes a `Scenario` (plain data) from a seed, `world.py` runs it and watches, `answer.py` says what must
come out, `liveness.py` says how long anybody may wait, `shrink.py` makes a failing scenario small. docs/testing.md
explains how to read a failure.
"""
