"""Requests to the real API server as they go over the wire, by whomever, on every route; and its answer whole."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from lab.api import Cluster

DENIED = re.compile(
    r"ValidatingAdmissionPolicy '(?P<policy>[^']+)' with binding '[^']+' denied request: (?P<message>.*)", re.DOTALL
)
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: `message` is the API server's own sentence when it said no."""

    status: int
    body: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if self.body.get("kind") == "Status" else ""

    @property
    def refused(self) -> tuple[str, str] | None:
        """Policy and sentence of a refusal by admission, None for any other answer."""
        found = DENIED.search(self.message)
        return (found["policy"], found["message"]) if self.status == 403 and found else None

    @property
    def forbidden(self) -> bool:
        """A refusal by RBAC, not by a policy."""
        return self.status == 403 and self.refused is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """A person or program: impersonated by the administrator, or with a token of its own."""

    user: str = ""
    groups: Sequence[str] = ()
    token: str = ""


@dataclass(slots=True, kw_only=True)
class Api:
    """The API server of one cluster."""

    cluster: Cluster
    _clients: dict[bool, httpx2.Client] = field(default_factory=dict)

    def ask(
        self,
        who: Who | None,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "",
        query: Mapping[str, str] | None = None,
        dry_run: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request as `who` (None: the cluster's administrator). `kind` is the content type of a patch."""
        sent = dict(headers or {})
        if who is not None and who.token:
            sent["Authorization"] = f"Bearer {who.token}"
        pairs: list[tuple[str, str]] = list(sent.items())
        if who is not None and who.user:
            pairs += [("Impersonate-User", who.user), *(("Impersonate-Group", group) for group in who.groups)]
        content = None
        if dry_run and method == "DELETE":  # with a body, the API server takes its options from there and nowhere else
            body = dict(body or {}) | {"dryRun": ["All"]}
        if body is not None:
            pairs.append(("Content-Type", kind or "application/json"))
            content = json.dumps(body).encode()
        url = httpx2.URL(self.cluster.server + path).copy_merge_params(dict(query or {}) | ({"dryRun": "All"} if dry_run else {}))
        client = self._client(admin=who is None or not who.token)
        answer = client.request(method, url, content=content, headers=pairs)
        try:
            parsed = answer.json()
        except ValueError:
            parsed = {"kind": "Text", "message": answer.text}
        return Answer(status=answer.status_code, body=parsed, warnings=tuple(answer.headers.get_list("warning")))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, *, admin: bool) -> httpx2.Client:
        if admin not in self._clients:
            context = ssl.create_default_context(cafile=str(self.cluster.ca_file))
            if admin:
                folder = Path(self.cluster.ca_file).parent
                context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
            self._clients[admin] = httpx2.Client(verify=context, trust_env=False, timeout=20)
        return self._clients[admin]
