"""Property tests have no deadline: machines that run them are shared."""

import hypothesis

hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")
