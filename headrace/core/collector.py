"""Python's collector of reference cycles, kept out of the step loop."""

from __future__ import annotations

import gc

YOUNG = 100_000  # more containers than any step makes and drops; Python's own figure is 700


def calm_collector() -> None:
    """Call once, when everything is loaded: what is there now is never looked at again, and new objects only when very
    many have stayed.

    A step makes a list for every running request, and drops it when its output is sent. Python counts those as a reason
    to look for cycles, at the worst through all objects that there are: with 2,048 requests that took 90 ms, in the
    midst of a step. The step loop makes no cycles; those that an exception leaves are still found, only later."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
