"""Process B: scheduling and the book-keeping of the KV cache. Token ids and numbers; neither text nor tensors."""
