"""What the simulation raises when the engine has done wrong."""

from __future__ import annotations

from headrace.errors import InvariantError


class Violation(InvariantError):  # noqa: N818 (the word of verification.md)
    """`invariant` is the letter of verification.md's list, or "crash" for an exception out of the engine. Two failures
    are of the same kind when their `rule` is the same: it names no request and no number."""

    def __init__(self, invariant: str, rule: str, details: str = "") -> None:
        super().__init__(f"({invariant}) {rule}" + (f": {details}" if details else ""))
        self.invariant = invariant
        self.rule = rule
