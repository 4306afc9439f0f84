"""Weights for servers that several ranks ask: the first one publishes them, and all go by what it says.

A server that loses them later is given them again by whichever rank finds it, from the same folder and under
the same name. So two ranks may give a server the same weights at once; that changes nothing, and what was
sampled meanwhile is asked for again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from peft import PeftModel
from torch import Tensor

from muster.dist import decided_by_first
from muster.engines.answers import Label
from muster.engines.servers import Server
from muster.engines.shelf import Load, Servable, Shelf
from muster.engines.wire import FaultError


def publish(
    shelf: Shelf, servers: Sequence[Server], policy: Servable, weights: Mapping[str, Tensor], version: int
) -> Load:
    """Has all ranks sample by these weights; every rank calls this, the first alone writes and loads them.

    Raises EngineError on all ranks where a server will not take them. One that can't be reached is left for
    later, as it is in a run of one process.
    """

    def by_first() -> object:
        load = shelf.put(policy, weights, version)
        taken = _bring_all(servers, load)
        return {"name": load.label.name, "folder": str(load.folder), "taken": taken}

    told = cast(dict[str, Any], decided_by_first(by_first))
    label = Label(name=told["name"], version=version, is_adapter=isinstance(policy.model, PeftModel))
    shelf.load = Load(label, Path(told["folder"]))
    for server in servers:
        server.held = label.name if server.url in told["taken"] else None
    return shelf.load


def _bring_all(servers: Sequence[Server], load: Load) -> list[str]:
    """Addresses of the servers that have taken the weights, each asked beside the others."""

    def bring(server: Server) -> str | None:
        try:
            server.bring(load)
        except FaultError:
            return None
        return server.url

    with ThreadPoolExecutor(len(servers), thread_name_prefix="vllm-load") as pool:
        return [url for url in pool.map(bring, servers) if url is not None]
