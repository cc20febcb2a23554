"""The demo app: its objects in the cluster, its catalog, and its delivery file at the head of a local git repository.

Lab, outside the layers. It must never hold a real name, password or address.
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

from dulwich import porcelain
from lightkube import Client, codecs
from lightkube.resources.apps_v1 import Deployment

from lab import processes

FILES: Final = Path(__file__).with_name("demo")
CATALOG: Final = FILES / "catalog-info.yaml"
DEPLOYMENTS: Final = (("checkout", "checkout"), ("ledger", "ledger"))


def deploy(client: Client, image: str, seconds: float = 60) -> None:
    """Apply the demo's objects and return when every pod is ready; applying them again changes nothing."""
    text = Template((FILES / "cluster.yaml").read_text()).substitute(image=image)
    for item in codecs.load_all_yaml(text):
        client.apply(item)
    processes.wait_until("the demo app's pods", lambda: all(ready(client, *names) for names in DEPLOYMENTS), seconds, every=0.1)


def ready(client: Client, namespace: str, name: str) -> bool:
    """Tell whether the deployment's pods are all ready and of its latest form."""
    found = client.get(Deployment, name, namespace=namespace)
    if found.spec is None or found.status is None or found.metadata is None:
        return False
    current = found.status.observedGeneration == found.metadata.generation
    return current and found.status.updatedReplicas == found.spec.replicas == (found.status.readyReplicas or 0)


def delivery_repository(folder: Path, cluster: str, *, tier: str = "flight") -> Path:
    """Make a git repository whose default branch `main` holds the demo's `cicd.yaml`; `folder` must not exist."""
    folder.mkdir(parents=True)
    porcelain.init(str(folder))
    repository = str(folder)
    porcelain.symbolic_ref(repository, "refs/heads/main", force=True)
    return commit_delivery(folder, Template((FILES / "cicd.yaml").read_text()).substitute(cluster=cluster, tier=tier))


def commit_delivery(folder: Path, text: str) -> Path:
    """Commit this text as `cicd.yaml`, for tests that change what the repository says."""
    (folder / "cicd.yaml").write_text(text)
    porcelain.add(str(folder), [str(folder / "cicd.yaml")])
    who = b"lab <lab@example.test>"
    porcelain.commit(str(folder), message=b"delivery of checkout", author=who, committer=who)
    return folder
