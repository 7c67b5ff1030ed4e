"""How the engine core drives its workers: in its own process, or (later) in others."""
