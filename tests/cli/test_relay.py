"""The relay and the terminal's modes without a terminal: how long it tries, when it gives up, what it puts back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from breakglass.cli.client import Refused, UnreachableError
from breakglass.cli.rawtty import Modes
from breakglass.cli.relay import RECONNECT_SECONDS, Hello, Left, Lost, Relay
from tests.virtual_time import VirtualLoop, in_virtual_time


class _Server:
    """Answers every request for a ticket the same way."""

    def __init__(self, answer: Refused | Exception) -> None:
        self._answer = answer
        self.asked: list[float] = []

    async def post(self, path: str, body: object = None, *, seconds: float = 0) -> Refused:
        self.asked.append(asyncio.get_running_loop().time())
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class _Keyboard:
    """A terminal at which nothing is typed until `keys` says so."""

    interactive = True

    def __init__(self) -> None:
        self.keys: asyncio.Queue[bytes] = asyncio.Queue()
        self.lines: list[str] = []
        self.resized: Callable[[], None] = lambda: None

    async def read(self) -> bytes:
        return await self.keys.get()

    async def line(self, text: str) -> None:
        self.lines.append(text)


async def _joined(hello: Hello) -> None:
    raise AssertionError("nobody joins here")


def _relay(server: _Server, keyboard: _Keyboard) -> Relay:
    return Relay(server, "abcdefgh23", keyboard, joined=_joined)  # type: ignore[arg-type]


@in_virtual_time
async def test_a_tower_that_does_not_come_back_is_given_up_after_two_minutes() -> None:
    server, keyboard = _Server(UnreachableError("cannot reach Tower")), _Keyboard()
    assert await _relay(server, keyboard).run() == Lost(why="cannot reach Tower")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    assert RECONNECT_SECONDS <= loop.time() < RECONNECT_SECONDS + 5
    pauses = [after - before for before, after in zip(server.asked, server.asked[1:], strict=False)]
    assert pauses[0] < 0.2
    assert max(pauses) <= 4.1
    assert len(keyboard.lines) == 1


@in_virtual_time
async def test_a_definite_no_is_not_asked_again() -> None:
    refused = Refused(code="wrong_state", sentence="Session abcdefgh23 is over.", remedy="", status=409)
    server = _Server(refused)
    assert await _relay(server, _Keyboard()).run() == Lost(why="session abcdefgh23 is over", refused=refused)
    assert len(server.asked) == 1


@in_virtual_time
async def test_a_tower_in_trouble_is_asked_again() -> None:
    server = _Server(Refused(code="cannot_decide", sentence="Not now.", remedy="", status=503))
    assert await _relay(server, _Keyboard()).run() == Lost(why="not now")
    assert len(server.asked) > 20


@in_virtual_time
async def test_somebody_waiting_for_a_reconnect_can_leave() -> None:
    for keys in (b"~.", b"\x03"):
        server, keyboard = _Server(UnreachableError("cannot reach Tower")), _Keyboard()
        staying = asyncio.create_task(_relay(server, keyboard).run())
        await asyncio.sleep(3)
        keyboard.keys.put_nowait(keys)
        assert await staying == Left()


# --- what a shell leaves on -------------------------------------------------------------------------------------------


def test_only_what_was_switched_on_is_switched_off() -> None:
    modes = Modes()
    modes.seen(b"\x1b[?1049h\x1b[?1;2004h\x1b[?25l\x1b[?2004l\x1b[?7h")
    assert modes.reset() == b"\x1b[?1l\x1b[?1049l\x1b[?25h\x1b[0m"
    assert modes.reset() == b"\x1b[0m"


@given(
    st.lists(st.sampled_from([b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h", b"text", b"\x1b[31m", b"\x1b["])),
    st.data(),
)
def test_where_the_output_is_cut_changes_nothing(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cut = data.draw(st.integers(0, len(whole)))
    one, two = Modes(), Modes()
    one.seen(whole)
    two.seen(whole[:cut])
    two.seen(whole[cut:])
    assert one.reset() == two.reset()
