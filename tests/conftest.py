"""Settings that must stand before torch is imported anywhere, in this process or in the ranks it starts."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

from hypothesis import settings

settings.register_profile("trueline", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("trueline")
