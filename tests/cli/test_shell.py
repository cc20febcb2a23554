"""`breakglass shell` at a real terminal (a pty), against a Tower that listens."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from breakglass.core.model import EndReason, State
from tests.cli.conftest import Sits
from tests.cli.pty_person import environment, here, without_terminal
from tests.simulators.tower import ListeningTower

ASKS = ("shell", "checkout/prod", "-r", "checkout answers 500")
Approves = Callable[[], Awaitable[str]]


async def test_from_the_question_to_the_shells_own_exit(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees(r"tower: session [a-z2-7]{10}: component:default/checkout in prod, Flight \(production\), 30 min")
        digest = next(iter(tower.service.rows.values())).request.digest
        await person.sees(f"tower: request {digest}")
        await person.sees("tower: can approve: user:default/ben, user:default/carla")
        await person.sees("tower: nobody answers\\? call the platform's on-call line: 555 0100")
        await person.sees("waiting for approval")
        assert not person.raw
        sid = await approves()
        await person.sees(rf"tower: shell 1 on pod checkout-1, Flight \(production\), session {sid}, until \d\d:\d\d\r\n")
        await person.sees("tower: no process access.*tower: you can write in /dev/shm.*tower: recorded, keys too; ~\\? for help")
        await person.sees(r"\$ ")
        assert person.raw
        person.types("grüße".encode() + b"\r")
        await person.sees("grüße\r\n\\$ ".encode())
        person.types(b"exit\r")
        assert await person.leaves() == 0
        await person.sees("tower: the shell exited\r\n")
        assert not person.raw


async def test_a_new_size_reaches_the_shell(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS, cols=91, rows=33) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        person.resizes(120, 40)
        person.types(b"x\r")
        await person.sees("x\r\n\\$ ")
        assert tower.service.sizes[0] == (91, 33)
        assert (120, 40) in tower.service.sizes
        person.types(b"exit\r")
        assert await person.leaves() == 0


async def test_control_c_belongs_to_the_shell(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        person.types(b"\x03\x1a\x1c")
        person.types(b"exit\r")
        person.types(b"\r")
        async with asyncio.timeout(10):
            while b"\x03\x1a\x1c" not in tower.service.typed:
                await asyncio.sleep(0.01)


async def test_the_escapes_help_time_and_leave(sits: Sits, approves: Approves, tower: ListeningTower) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        sid = await approves()
        await person.sees(r"\$ ")
        person.types(b"~?")
        await person.sees("tower: ~e  end the session for good")
        person.types(b"~t")
        await person.sees(r"tower: (29|30) min \d\d s left, until \d\d:\d\d")
        person.types(b"~.")
        assert await person.leaves() == 0
        await person.sees(f"tower: session {sid} goes on for 2 minutes without you: breakglass shell --resume {sid}")
        assert not person.raw
        assert bytes(tower.service.typed) == b""
    assert next(iter(tower.service.rows.values())).state is State.ACTIVE


async def test_the_escape_that_ends_ends_the_session(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        person.types(b"~e")
        assert await person.leaves() == 0
        await person.sees("tower: ended by its requester")
    assert next(iter(tower.service.rows.values())).ended.reason is EndReason.ENDED_BY_REQUESTER  # type: ignore[union-attr]


async def test_a_cut_connection_is_taken_up_again_without_a_byte_lost_or_painted_twice(
    tower: ListeningTower, sits: Sits, approves: Approves
) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        sid = await approves()
        await person.sees(r"\$ ")
        person.types(b"before\r")
        await person.sees("before\r\n\\$ ")
        tower.cut()
        tower.service.lives[next(iter(tower.service.rows))].show(b"[shown meanwhile]")
        await person.sees("tower: connection lost .*, reconnecting")
        await person.sees("tower: connected again")
        await person.sees(r"\[shown meanwhile\]")
        person.types(b"after\r")
        await person.sees("after\r\n\\$ ")
        assert person.screen.count(b"[shown meanwhile]") == 1
        assert person.screen.count(b"before\r\n$ ") == 1
        assert bytes(tower.service.typed) == b"before\rafter\r"
        person.types(b"exit\r")
        assert await person.leaves() == 0
        assert sid


async def test_towers_death_leaves_the_terminal_as_it_was(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        tower.service.lives[next(iter(tower.service.rows))].show(b"\x1b[?1049h\x1b[?2004h\x1b[?25lfull screen")
        await person.sees("full screen")
        tower.stop()
        await person.sees("tower: connection lost")
        assert person.raw
        person.types(b"\x03")
        assert await person.leaves() == 0
        assert not person.raw
        assert person.screen.count(b"\x1b[?1049l") == 1
        assert b"\x1b[?2004l" in person.screen
        assert b"\x1b[?25h" in person.screen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_signal_that_ends_us_leaves_the_terminal_as_it_was(
    sits: Sits, approves: Approves, number: signal.Signals
) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        assert person.raw
        person.process.send_signal(number)
        assert await person.leaves() == 128 + number
        assert not person.raw


async def test_after_a_stop_and_a_continue_the_terminal_is_raw_again(sits: Sits, approves: Approves) -> None:
    import termios
    import tty

    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        person.process.send_signal(signal.SIGSTOP)
        attributes = termios.tcgetattr(person._slave)
        attributes[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(person._slave, termios.TCSANOW, attributes)
        person.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(10):
            while not person.raw:
                await asyncio.sleep(0.01)
        assert tty


async def test_a_lost_pod_costs_a_shell_and_not_the_approval(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        person.types(b"podgone\r")
        await person.sees("tower: the pod is gone; the session has time left: opening another shell, no new approval needed")
        await person.sees("tower: shell 2 on pod checkout-2")
        at = len(person.screen)
        person.types(b"here\r")
        await person.sees("here\r\n\\$ ", after=at)
        person.types(b"podgone\r")
        assert await person.leaves() == 6
        await person.sees("tower: the session has time left: breakglass shell --resume")
        assert not person.raw


async def test_no_reopen_says_how_to_come_back_instead(sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS, "--no-reopen") as person:
        await person.sees("waiting")
        sid = await approves()
        await person.sees(r"\$ ")
        person.types(b"podgone\r")
        assert await person.leaves() == 6
        await person.sees(f"tower: the session has time left: breakglass shell --resume {sid}")


async def test_what_tower_ends_is_another_exit_code_and_says_why(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        tower.service.finish(next(iter(tower.service.rows)), EndReason.HARD_STOP, None)
        assert await person.leaves() == 6
        await person.sees("tower: the session's time is over")


async def test_a_warning_is_a_line_of_its_own(sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        await approves()
        await person.sees(r"\$ ")
        person.types(b"warn\r")
        await person.sees("\r\ntower: ten minutes are left\r\n")
        person.types(b"~.")
        await person.leaves()


async def test_asking_again_goes_on_in_the_session_that_is_open(tower: ListeningTower, sits: Sits, approves: Approves) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        sid = await approves()
        await person.sees(r"\$ ")
        person.types(b"first\r")
        await person.sees("first\r\n\\$ ")
        person.types(b"~.")
        await person.leaves()
    async with sits("ana", "shell", "checkout/prod") as person:
        await person.sees(f"tower: you have session {sid} open here already \\(active\\): going on in it")
        await person.sees("first\r\n\\$ ")
        person.types(b"exit\r")
        assert await person.leaves() == 0
    assert len(tower.service.rows) == 1


async def test_a_denied_request_is_not_approved(tower: ListeningTower, sits: Sits, as_: Callable[[str], object]) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        sid = next(iter(tower.service.rows))
        async with as_("ben") as ben:  # type: ignore[attr-defined]
            await ben.post(f"/sessions/{sid}/deny", json={})
        assert await person.leaves() == 4
        await person.sees(f"tower: session {sid} is over: the request was denied")


async def test_control_c_while_waiting_offers_to_withdraw(tower: ListeningTower, sits: Sits) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        person.types(b"\x03")
        await person.sees(r"tower: withdraw the request\? \[Y/n\]")
        person.types(b"\r")
        assert await person.leaves() == 4
        await person.sees("withdrawn")
    assert next(iter(tower.service.rows.values())).ended.reason is EndReason.WITHDRAWN  # type: ignore[union-attr]


async def test_control_c_and_no_leaves_the_request_standing_and_says_how_to_come_back(tower: ListeningTower, sits: Sits) -> None:
    async with sits("ana", *ASKS) as person:
        await person.sees("waiting")
        person.types(b"\x03")
        await person.sees(r"\[Y/n\]")
        person.types(b"n\r")
        assert await person.leaves() == 4
        await person.sees("goes on waiting: breakglass shell --resume")
    assert next(iter(tower.service.rows.values())).state is State.REQUESTED


# --- without a terminal -----------------------------------------------------------------------------------------------


async def _approved_soon(tower: ListeningTower, approves: Approves) -> None:
    async with asyncio.timeout(15):
        while not tower.service.rows:
            await asyncio.sleep(0.01)
    await approves()


async def test_what_is_piped_is_typed_and_what_is_shown_is_standard_output(
    tower: ListeningTower, approves: Approves, tmp_path: Path
) -> None:
    approving = asyncio.create_task(_approved_soon(tower, approves))
    code, out, err = await without_terminal([*ASKS], environment(tower.url, "ana", tmp_path), b"~. is no escape here\nexit\n")
    await approving
    assert code == 0
    assert out.replace(b"\r\n", b"\n") == b"$ \n~. is no escape here\n$ \nexit\n$ "
    assert b"tower: recorded, keys too\n" in err
    assert b"tower: the shell exited\n" in err


async def test_exit_on_eof_ends_a_shell_whose_script_forgot_to(tower: ListeningTower, approves: Approves, tmp_path: Path) -> None:
    approving = asyncio.create_task(_approved_soon(tower, approves))
    code, out, _ = await without_terminal([*ASKS, "--exit-on-eof"], environment(tower.url, "ana", tmp_path), b"one\n")
    await approving
    assert code == 0
    assert b"one" in out


async def test_with_json_standard_output_is_one_document(tower: ListeningTower, approves: Approves, tmp_path: Path) -> None:
    approving = asyncio.create_task(_approved_soon(tower, approves))
    code, out, err = await without_terminal([*ASKS, "--json"], environment(tower.url, "ana", tmp_path), b"hello\nexit\n")
    await approving
    assert code == 0
    assert json.loads(out) == {"sid": next(iter(tower.service.rows)), "reason": "shell_exited", "exit": 0}
    assert b"hello" in err


async def test_more_input_than_the_window_arrives_whole_while_the_output_is_held_back(
    tower: ListeningTower, approves: Approves, tmp_path: Path
) -> None:
    approving = asyncio.create_task(_approved_soon(tower, approves))
    lines = b"".join(b"%07d" % n + b"z" * 120 + b"\n" for n in range(24_000))
    code, out, _ = await without_terminal([*ASKS], environment(tower.url, "ana", tmp_path), lines + b"exit\n", seconds=60)
    await approving
    assert code == 0
    assert bytes(tower.service.typed) == lines + b"exit\n"
    assert len(out) > len(lines)


async def test_a_refusal_is_the_servers_words_a_remedy_and_exit_code_3(tower: ListeningTower, tmp_path: Path) -> None:
    code, out, err = await without_terminal([*ASKS, "--json"], environment(tower.url, "oz", tmp_path))
    assert code == 3
    assert json.loads(out)["error"]["code"] == "not_entitled"
    assert b"tower: only owners of the app may ask for a session (not_entitled)\n" in err
    assert b"tower: what you can do: ask one of them\n" in err


async def test_no_tower_is_exit_code_5_and_names_the_address_but_never_the_token(tmp_path: Path) -> None:
    env = environment("http://127.0.0.1:1", "ana", tmp_path)
    code, out, err = await without_terminal([*ASKS], env)
    assert (code, out) == (5, b"")
    assert b"tower: cannot reach Tower at http://127.0.0.1:1" in err
    assert b"token-ana" not in err


async def test_without_a_reason_nothing_is_asked(tower: ListeningTower, tmp_path: Path) -> None:
    code, _, err = await without_terminal(["shell", "checkout/prod"], environment(tower.url, "ana", tmp_path))
    assert code == 2
    assert b"tower: say why: -r" in err
    assert tower.service.rows == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shell"], "name APP/ENVIRONMENT"),
        (["shell", "checkout"], "checkout is not APP/ENVIRONMENT"),
        (["shell", "checkout/prod", "-r", "why now", "--minutes", "61"], "61 is not in the range"),
        (["shell", "checkout/prod", "--resume", "abcd"], "name APP/ENVIRONMENT"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert here(arguments, environment("http://127.0.0.1:1", "ana", tmp_path), monkeypatch) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err
