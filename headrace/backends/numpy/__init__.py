"""The slow truth of every op: numpy and BLAS on a CPU, in float32. See docs/adr/0001 for how it multiplies."""
