"""How hard generated tests search: HYPOTHESIS_PROFILE names the profile, "default" or "soak"."""

import os

from hypothesis import settings

# Examples take turns and leases, not microseconds: a deadline per example would only measure the machine.
settings.register_profile("default", max_examples=50, deadline=None, derandomize=False, print_blob=True)
settings.register_profile("soak", settings.get_profile("default"), max_examples=5_000)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
