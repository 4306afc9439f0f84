"""An optimizer's state as named tensors and JSON, and back, entry by entry."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from muster.errors import CheckpointError

GROUPS = "groups"
"""Under this name lie the settings of the groups of parameters, which some optimizers move."""


class Kept(NamedTuple):
    """All that an optimizer remembers."""

    tensors: Mapping[str, Tensor]
    """Named `parameter/entry`."""
    plain: Mapping[str, object]
    """What isn't a tensor, under names of the same kind; fit for JSON."""


def kept(optimizer: Optimizer, names: list[str]) -> Kept:
    """The optimizer's state; `names` are those of its parameters in its order.

    Raises CheckpointError for an entry that is neither a tensor nor made of numbers, texts, lists, tables
    and tensors.
    """
    tensors: dict[str, Tensor] = {}
    plain: dict[str, object] = {}
    for name, param in _by_name(optimizer, names).items():
        for entry, value in optimizer.state.get(param, {}).items():
            key = f"{name}/{entry}"
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                plain[key] = _encoded(value, key, tensors)
    settings = [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    plain[GROUPS] = _encoded(settings, GROUPS, tensors)
    return Kept(_apart(tensors), plain)


def put_back(optimizer: Optimizer, names: list[str], saved: Kept) -> None:
    """Gives the optimizer the state that was kept, as it holds it."""
    params = _by_name(optimizer, names)
    inner: set[str] = set()
    for key, value in saved.plain.items():
        if key == GROUPS:
            _put_settings(optimizer, _decoded(value, saved.tensors, inner))
            continue
        name, _, entry = key.rpartition("/")
        optimizer.state[_param(params, name)][entry] = _decoded(value, saved.tensors, inner)
    on_device = {
        id(param)
        for group in optimizer.param_groups
        for param in group["params"]
        if group.get("fused") or group.get("capturable")
    }
    for key, tensor in saved.tensors.items():
        if key not in inner:
            name, _, entry = key.rpartition("/")
            param = _param(params, name)
            # Step counters are scalars, which optimizers keep on the CPU whatever the parameter's device,
            # those apart whose steps run on it whole.
            moves = tensor.ndim or id(param) in on_device
            optimizer.state[param][entry] = tensor.to(param.device) if moves else tensor


def _by_name(optimizer: Optimizer, names: list[str]) -> dict[str, Tensor]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return dict(zip(names, params, strict=True))


def _param(params: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in params:
        raise CheckpointError(f"the checkpoint's optimizer holds {name!r}, which the model does not train")
    return params[name]


def _put_settings(optimizer: Optimizer, settings: object) -> None:
    if not isinstance(settings, list) or len(settings) != len(optimizer.param_groups):
        raise CheckpointError(
            f"the checkpoint's optimizer has other groups of parameters than this one, "
            f"which has {len(optimizer.param_groups)}. Resume with the version of Muster that saved it."
        )
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        group.update(values)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, of which no two share memory: safetensors refuses those that do."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[key] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return found


def _encoded(value: object, key: str, tensors: dict[str, Tensor]) -> object:
    """As JSON; tensors inside go to `tensors`, and their names stand in for them."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            tensors[key] = value
            return {"tensor": key}
        case list() | tuple():
            items = [_encoded(item, f"{key}/{number}", tensors) for number, item in enumerate(value)]
            return {type(value).__name__: items}
        case dict() if all(isinstance(name, str) for name in value):
            return {"dict": {name: _encoded(item, f"{key}/{name}", tensors) for name, item in value.items()}}
        case _:
            raise CheckpointError(
                f"the optimizer holds {key} = {value!r}, a {type(value).__name__}, which is neither a tensor "
                "nor JSON, so no checkpoint could hold it"
            )


def _decoded(value: object, tensors: Mapping[str, Tensor], used: set[str]) -> object:
    """What `_encoded` was given; the names of the tensors in it are added to `used`."""
    match value:
        case {"tensor": str(key)}:
            used.add(key)
            return tensors[key]
        case {"list": list(items)}:
            return [_decoded(item, tensors, used) for item in items]
        case {"tuple": list(items)}:
            return tuple(_decoded(item, tensors, used) for item in items)
        case {"dict": dict(items)}:
            return {name: _decoded(item, tensors, used) for name, item in items.items()}
        case _:
            return value


def state_bytes(optimizer: Optimizer) -> int:
    """What the optimizer's tensors take."""
    values = [value for entry in optimizer.state.values() for value in entry.values()]
    return sum(value.nbytes for value in values if torch.is_tensor(value))
