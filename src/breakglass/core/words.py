"""What people are told, in one place: why something ended, and what process access means. Pure; never a secret."""

from __future__ import annotations

from breakglass.core.model import AfterProcessAccess, EndReason, Request, Tier

ENDED: dict[EndReason, str] = {
    EndReason.HARD_STOP: "The session's time is over.",
    EndReason.IDLE: "Ten minutes without a keystroke.",
    EndReason.NO_VIEWER: "Two minutes without anybody at the shell.",
    EndReason.ENDED_BY_REQUESTER: "Ended by its requester.",
    EndReason.ENDED_BY_OTHER: "Ended by an owner or an admin.",
    EndReason.NOT_ENTITLED: "Its requester is not entitled any more.",
    EndReason.RECORDER_FAILED: "The record could not be kept, and without a record there is no session.",
    EndReason.STORE_FAILED: "Tower could not write down the session's state.",
    EndReason.GRANT_GONE: "The grant was deleted in the cluster.",
    EndReason.POD_GONE: "The pod is gone.",
    EndReason.SHELL_EXITED: "The shell exited.",
    EndReason.ATTACH_LOST: "The connection to the debug container was lost.",
    EndReason.FRAME_VIOLATION: "The stream from the debug container was tampered with or damaged.",
    EndReason.OPEN_FAILED: "The shell did not open.",
    EndReason.TOWER_STOPPED: "Tower was stopped.",
    EndReason.TOWER_DIED: "Tower died; the record is kept up to there.",
    EndReason.DENIED: "The request was denied.",
    EndReason.WITHDRAWN: "The request was withdrawn.",
    EndReason.EXPIRED: "Nobody answered, or nobody opened it, in time.",
    EndReason.SHELLS_SPENT: "All nine shells of this session were used.",
}


def process_access_sentence(request: Request) -> str:
    """What process access really gives, said to requester and approver alike; and what happens to the pod after it."""
    if not request.process_access:
        return "No process access: the shell is beside the app, not inside it."
    after = (
        "The pod is recycled afterwards."
        if request.after_process_access is AfterProcessAccess.RECYCLE
        else "The pod is kept afterwards (cicd.yaml says so) and marked tainted."
    )
    return (
        "Process access reads the app's memory, secrets and token, "
        "and can run code inside the app that this record does not show. " + after
    )


def tier_sentence(tier: Tier) -> str:
    """The tier, as a sentence's end."""
    return f"on {tier.words}"


def ended_sentence(reason: EndReason) -> str:
    """Why it ended, for the person at the keyboard."""
    return ENDED[reason]
