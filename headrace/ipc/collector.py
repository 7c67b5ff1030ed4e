"""Python's collector of reference cycles, kept out of the loops that serve."""

from __future__ import annotations

import gc


def calm_collector(young: int) -> None:
    """Call once, when everything is loaded: what is there now is never looked at again, and new objects only when more
    than `young` containers have stayed; Python's own figure is 700.

    A step makes a list for every running request, and drops it when its output is sent; the API server makes some
    objects for each token. Python counts those as a reason to look for cycles, at the worst through all objects that
    there are: 10 ms in the API server, and 90 ms in an engine core with 2,048 requests, in the midst of a step. Neither
    makes cycles; those that an exception leaves are still found, only later."""
    gc.freeze()
    gc.set_threshold(young, 20, 100)
