"""What every test may use."""

import asyncio

from hypothesis import settings

pytest_plugins = ["tests.lab_fixture"]

# The looptime plugin asks for the current loop in synchronous tests too; Python 3.11 would make one there, and leak it.
asyncio.set_event_loop(None)

# A loaded machine is no failure: hypothesis would call a test that takes 200 ms once, and less the next time, unreliable.
settings.register_profile("tower", deadline=None)
settings.load_profile("tower")
