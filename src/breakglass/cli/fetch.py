"""A session's record from the server into a directory, object by object, each compared with the listing's digest.

Must never: write outside the directory, or keep an object whose bytes are not the ones that were listed.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from breakglass.cli import say
from breakglass.cli.client import Client, Refused, UnreachableError, segment

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


async def fetch(client: Client, sid: str, into: Path, *, inputs: bool) -> Refused | None:
    """None once everything that may be read is in `into`. Input objects that are for reviewers only are left out, and said."""
    listing = await client.get(f"/sessions/{segment(sid)}/record")
    if isinstance(listing, Refused):
        return listing
    left_out = 0
    progress = say.Progress()
    for number, each in enumerate(listing["objects"], start=1):
        name = str(each["key"])
        if not _NAME.fullmatch(name):
            raise UnreachableError("the server lists an object whose name is not one of a record's")
        if name.endswith(".in") and not inputs:
            continue
        progress.show(f"reading the record, {len(listing['objects'])} objects", f": {number}")
        data = await client.raw(f"/sessions/{listing['sid']}/record/{name}")
        if isinstance(data, Refused):
            if name.endswith(".in") and data.status == 403:
                left_out += 1
                continue
            progress.clear()
            return data
        if hashlib.sha256(data).hexdigest() != each["sha256"]:
            raise UnreachableError(f"{name} came with other bytes than were listed: repeat; if it stays, tell the platform team")
        (into / name).write_bytes(data)
    progress.clear()
    if left_out:
        say.line(f"{left_out} objects of the input lane are for reviewers only and were left out")
    return None
