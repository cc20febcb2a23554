"""Who must hear what: approvers when asked and again when nobody answers, everybody when glass breaks or a close is stuck.

Must never: slow or stop a session; the notifier is best effort and nothing here waits for an answer.
"""

from __future__ import annotations

from breakglass.core.model import EntityRef, Session
from breakglass.core.words import tier_sentence
from breakglass.judging import Judge
from breakglass.ports import Notice, PortError, Urgency
from breakglass.tower import Tower


class Notices:
    """The sentences; `ports.Notifier` carries them."""

    def __init__(self, tower: Tower, judge: Judge) -> None:
        self._tower = tower
        self._judge = judge

    async def asked(self, session: Session) -> None:
        """A request waits for another person."""
        await self._say(
            "asked",
            Urgency.ASK,
            session,
            f"{_who(session)} asks for a shell in {_where(session)}: {session.request.reason}",
            answer=True,
        )

    async def unanswered(self, session: Session) -> None:
        """Five minutes without an answer: once more, louder, to approvers and the admins' pager."""
        on_call = self._tower.settings.on_call
        sentence = f"Nobody has answered {_who(session)} about {_where(session)} for five minutes. On call: {on_call}"
        await self._say("unanswered", Urgency.ALARM, session, sentence, answer=True)

    async def approved(self, session: Session) -> None:
        """The requester may open now."""
        await self._say("approved", Urgency.INFO, session, f"{_who(session)} may open a shell in {_where(session)}: approved.")

    async def opened(self, session: Session) -> None:
        """A shell is open."""
        shell = session.shell
        await self._say(
            "opened",
            Urgency.INFO,
            session,
            f"{_who(session)} opened a shell in {_where(session)}, pod {shell.pod if shell else '?'}.",
        )

    async def glass_broken(self, session: Session) -> None:
        """An admin went in without an approver; it will be reviewed."""
        await self._say(
            "glass_broken",
            Urgency.ALARM,
            session,
            f"{_who(session)} broke the glass of {_where(session)}: {session.request.reason}",
            answer=True,
        )

    async def stuck(self, session: Session) -> None:
        """A close is not finished: something is still open in the cluster, or a record is not locked."""
        await self._say(
            "stuck",
            Urgency.ALARM,
            session,
            f"Session {session.sid} in {_where(session)} is stuck: {session.stuck_because}",
            answer=True,
        )

    async def _say(self, event: str, urgency: Urgency, session: Session, sentence: str, *, answer: bool = False) -> None:
        recipients: tuple[EntityRef, ...] = (session.request.requester.ref,)
        if answer:
            recipients = await self.answerers(session)
        await self._tower.notifier.notify(
            Notice(
                event=event, urgency=urgency, sid=session.sid, app=session.request.app, sentence=sentence, recipients=recipients
            )
        )

    async def answerers(self, session: Session) -> tuple[EntityRef, ...]:
        """Who could answer this request now."""
        try:
            app = await self._tower.catalog.app(session.request.app)
        except PortError:
            return ()
        return () if app is None else await self._judge.answerers(app, session.request.requester.names)


def _who(session: Session) -> str:
    return session.request.requester.ref


def _where(session: Session) -> str:
    request = session.request
    return f"{request.app} / {request.environment} {tier_sentence(request.tier)}"
