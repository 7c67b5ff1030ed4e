"""Devices, each with the same faces (`model.ops.Backend`). Named by import string, never imported statically."""
