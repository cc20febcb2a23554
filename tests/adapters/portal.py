"""The portal as the cluster adapter's tests make it: a token in a file, and a server on loopback."""

from __future__ import annotations

from pathlib import Path

from breakglass.adapters.kubernetes_api import Endpoint, TokenFile
from breakglass.adapters.kubernetes_attach import KubernetesAttach
from tests.simulators.wire import Wire

TOKEN = "the-portals-own-token"


def portal(wire: Wire, folder: Path, **changes: object) -> Endpoint:
    (folder / "token").write_text(TOKEN + "\n")
    usual: dict[str, object] = {"cluster": "demo", "server": wire.url, "tls": wire.tls, "auth": TokenFile(folder / "token")}
    return Endpoint(**usual | changes)  # type: ignore[arg-type]


async def enter(where: Endpoint) -> None:
    async with KubernetesAttach(where).attach("checkout", "p", "debug-abcdefghij-1"):
        pass
