"""A webhook receiver that is dead, slow, hostile or full must not slow a session, and its notices must be believable."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections import deque
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from breakglass.adapters.notify_log import NotifyLog
from breakglass.adapters.notify_webhook import QUEUE, SECONDS, NotifyWebhook
from breakglass.core.model import Sid
from breakglass.ports import Notice, Urgency
from tests.simulators.notifier import Receiver
from tests.simulators.people import BEN, CARLA, CHECKOUT, NOW

URL = "https://chat.example.test/hook"
ASKED = Notice(
    event="session.asked",
    urgency=Urgency.ASK,
    sid=Sid("abcdefghij"),
    app=CHECKOUT,
    sentence="ana asks for a shell: “orders pile up” ✓",
    recipients=(BEN.ref, CARLA.ref),
)


def webhook(receiver: Receiver, secret_file=None) -> NotifyWebhook:
    return NotifyWebhook(URL, secret_file, transport=receiver, now=lambda: NOW)


async def told(receiver: Receiver, *notices: Notice, secret_file=None, seconds: float = 60) -> list[dict]:
    notifier = webhook(receiver, secret_file)
    with capture_logs() as logs:
        for notice in notices:
            await notifier.notify(notice)
        await notifier.close(seconds)
    return logs


async def test_a_notice_arrives_whole():
    receiver = Receiver()
    assert await told(receiver, ASKED) == []
    (request,) = receiver.requests
    assert (request.method, str(request.url), request.headers["Content-Type"]) == ("POST", URL, "application/json")
    assert json.loads(request.content) == {
        "version": 1,
        "event": "session.asked",
        "urgency": "ask",
        "session": "abcdefghij",
        "app": "component:default/checkout",
        "sentence": "ana asks for a shell: “orders pile up” ✓",
        "recipients": ["user:default/ben", "user:default/carla"],
        "at": NOW.isoformat(),
    }
    assert "X-Tower-Signature" not in request.headers


async def test_a_signed_notice_can_be_checked_and_a_changed_secret_counts_at_once(tmp_path):
    receiver, notifier = Receiver(), None
    secret_file = tmp_path / "secret"
    notifier = webhook(receiver, secret_file)
    for secret in (b"first secret", b"second secret"):
        secret_file.write_bytes(secret + b"\n")
        await notifier.notify(ASKED)
        await notifier._queue.join()
        request = receiver.requests[-1]
        at = str(int(NOW.timestamp()))
        expected = hmac.new(secret, at.encode() + b"." + request.content, hashlib.sha256).hexdigest()
        assert request.headers["X-Tower-Signature"] == f"t={at},v1={expected}"
    await notifier.close()


@pytest.mark.looptime
@pytest.mark.parametrize("first", [[0], [500], [429], [503, 0], [-1, 500]])
async def test_a_receiver_that_stumbles_is_tried_again_with_the_same_delivery_name(first):
    receiver = Receiver(plan=deque(first))
    assert await told(receiver, ASKED) == []
    assert len(receiver.requests) == len(first) + 1
    assert len({request.headers["X-Tower-Delivery"] for request in receiver.requests}) == 1


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("plan", "tries", "why"),
    [
        ([0, 0, 0], 3, "ConnectError"),
        ([500, 502, 503], 3, "the receiver answered 503"),
        ([-1, -1, -1], 3, "TimeoutError"),
        ([401], 1, "the receiver answered 401"),
        ([302], 1, "the receiver answered 302"),
    ],
)
async def test_a_notice_that_cannot_be_delivered_is_given_up_and_said_loudly(plan, tries, why):
    receiver = Receiver(plan=deque(plan))
    (line,) = await told(receiver, ASKED)
    assert len(receiver.requests) == tries
    assert (line["event"], line["event_lost"], line["log_level"], line["why"]) == ("notice.lost", "session.asked", "error", why)


@pytest.mark.looptime
async def test_a_dead_receiver_makes_nobody_wait_and_fills_no_memory():
    receiver = Receiver(plan=deque([-1] * 10000))
    notifier = webhook(receiver)
    began = asyncio.get_running_loop().time()
    with capture_logs() as logs:
        for number in range(QUEUE + 50):
            await notifier.notify(replace(ASKED, sentence=str(number)))
        assert asyncio.get_running_loop().time() == began
        assert notifier._queue.qsize() == QUEUE
        assert [line["sentence"] for line in logs] == [str(number) for number in range(QUEUE, QUEUE + 50)]
        await notifier.close(seconds=1)
    assert asyncio.get_running_loop().time() - began <= 1 + SECONDS


async def test_a_secret_that_is_gone_loses_the_notice_in_words_and_not_the_next_one(tmp_path):
    receiver = Receiver()
    notifier = webhook(receiver, tmp_path / "secret")
    with capture_logs() as logs:
        await notifier.notify(ASKED)
        await notifier._queue.join()
        (tmp_path / "secret").write_text("here again")
        await notifier.notify(ASKED)
        await notifier.close()
    assert [line["why"] for line in logs] == ["FileNotFoundError"]
    assert len(receiver.requests) == 1


async def test_half_a_character_in_a_sentence_does_not_stop_the_alarm():
    receiver = Receiver()
    assert await told(receiver, replace(ASKED, sentence="broken \ud800 glass")) == []
    assert json.loads(receiver.requests[0].content)["sentence"] == "broken ? glass"


async def test_closing_a_notifier_that_never_spoke_is_harmless():
    await webhook(Receiver()).close()


async def test_without_a_receiver_asks_are_warnings_and_alarms_are_errors_in_the_log():
    with capture_logs() as logs:
        for urgency in Urgency:
            await NotifyLog().notify(replace(ASKED, urgency=urgency))
    assert [(line["event"], line["log_level"], line["sid"]) for line in logs] == [
        ("session.asked", "info", "abcdefghij"),
        ("session.asked", "warning", "abcdefghij"),
        ("session.asked", "error", "abcdefghij"),
    ]
