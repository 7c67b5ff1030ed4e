"""Mathematics: no processes, no requests, no HTTP, no device. See `ops.py` for the contract with the backends."""
