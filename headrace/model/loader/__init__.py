"""From checkpoints to packed weights."""
