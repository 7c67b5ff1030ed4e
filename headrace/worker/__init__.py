"""Process C (or part of B): weights, KV tensors, forward and sampling, through one backend."""
