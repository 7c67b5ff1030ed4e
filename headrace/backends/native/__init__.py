"""CPU: kernels from csrc, a thread pool, and a forward that is recorded once and replayed."""
