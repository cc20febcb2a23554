"""Layer 2. Who may do what to an app, as one table: the built-in policy. Pure; a missing row or relation is a no."""

from __future__ import annotations

from enum import StrEnum


class Permission(StrEnum):
    """`tower.breakglass.*`, resource type catalog-entity (the app). Alphabetical; the route table names one per route."""

    APPROVE = "tower.breakglass.approve"
    BREAK = "tower.breakglass.break"
    REPLAY = "tower.breakglass.replay"
    REPLAY_INPUT = "tower.breakglass.replay.input"
    REQUEST = "tower.breakglass.request"
    REVIEW = "tower.breakglass.session.review"
    REVOKE = "tower.breakglass.revoke"
    SESSION_READ = "tower.breakglass.session.read"
