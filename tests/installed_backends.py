"""The backends that this installation has: tests that run on every backend list these."""

from importlib.util import find_spec

from headrace.config.resolve import NATIVE_KERNELS
from headrace.worker.backends import BACKENDS

INSTALLED_BACKENDS = sorted(name for name in BACKENDS if name != "native" or find_spec(NATIVE_KERNELS))
