"""Which tokens' keys and values are in which block. Pure book-keeping: the tensors are the worker's."""
