"""How the app is served: uvicorn with the limits and pings that `stream.py` and `security.py` rely on. Layer 1.

Must never: log a request's query, headers or body, or compress what a shell shows (lengths would tell about secrets).
"""

from __future__ import annotations

from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

PING_SECONDS = 10.0
PONG_SECONDS = 20.0
MESSAGE_MAX = (64 << 10) + 1024
"""Bytes of one WebSocket message; a larger one is closed with 1009 by the protocol itself. `stream.py` says the exact limit."""
DRAIN_SECONDS = 10
KEEP_SECONDS = 75
"""An idle connection is kept longer than any client or proxy of ours keeps one, so that nobody sends into a closing one."""


def server(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    certificate: Path | None = None,
    key: Path | None = None,
    drain_seconds: int = DRAIN_SECONDS,
) -> uvicorn.Server:
    """A server that is not running yet. Plain HTTP without a certificate: behind a proxy on the same machine, or for try."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http="h11",
            ws="websockets-sansio",
            ws_max_size=MESSAGE_MAX,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PONG_SECONDS,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_SECONDS,
            date_header=True,
            proxy_headers=False,
            timeout_graceful_shutdown=drain_seconds,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
    )
