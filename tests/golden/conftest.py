"""What needs the native kernels is no test where they are not installed; the head of pytest's output says whether they
are."""

from tests.installed_backends import INSTALLED_BACKENDS

collect_ignore = [] if "native" in INSTALLED_BACKENDS else ["test_native_demo_model.py"]
