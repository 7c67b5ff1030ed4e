"""What crosses a process line, and nothing else: msgspec Structs.

Rules: structs are array-like and append-only. A new field goes last and has a default; no field is removed or moved.
Golden bytes in tests/golden hold every struct to that. See docs/contracts.md for who sends what to whom.
"""
