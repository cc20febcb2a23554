"""Notices in Tower's own log, for a site that has no receiver yet: the least that people must be able to hear.

Outside the layers. Must never: raise, or write what a notice does not hold.
"""

from __future__ import annotations

from typing import Final

import structlog

from breakglass.ports import Notice, Urgency

log = structlog.get_logger()

_LEVELS: Final = {Urgency.INFO: "info", Urgency.ASK: "warning", Urgency.ALARM: "error"}


class NotifyLog:
    """Notifier to the log: asks are warnings, alarms are errors."""

    async def notify(self, notice: Notice) -> None:
        """Written on return."""
        write = getattr(log, _LEVELS[notice.urgency])
        write(notice.event, sid=notice.sid, app=notice.app, sentence=notice.sentence, recipients=list(notice.recipients))
