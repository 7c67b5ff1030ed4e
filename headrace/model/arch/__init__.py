"""Architectures, one file each: arithmetic, and the names that checkpoints give its weights."""
