"""What every test may use."""

import asyncio

pytest_plugins = ["tests.lab_fixture"]

# The looptime plugin asks for the current loop in synchronous tests too; Python 3.11 would make one there, and leak it.
asyncio.set_event_loop(None)
