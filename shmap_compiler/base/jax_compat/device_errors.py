"""Errors of `checkify` that differ between devices: they contain what JAX gives no public name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, multihost_utils
from jax.sharding import PartitionSpec

from shmap_compiler.base.untyped import AnyValue, CheckError, Effect, TreeDef

_Error: CheckError = checkify.Error


def add_device_errors(
    error: CheckError, found: CheckError, add: Callable[[CheckError, CheckError], CheckError]
) -> CheckError:
    """The error found so far, and after it what each device found.

    Args:
      found: the errors of the devices, stacked.
      add: the rule of `checkify` that adds an error to another.
    """
    types = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(found))
    kinds = {e.error_type: dataclasses.replace(e, shape_dtypes=types) for e in found._pred}
    one = _for_all_devices(found, kinds, min(found._metadata))
    if one._pred.keys() & error._pred.keys():
        # In a loop or branch, which must not change the structure of the error, or a second call.
        return add(error, one)
    (number,) = add(checkify.init_error, one)._metadata
    return DeviceErrors(error, found, kinds, number)


@jax.tree_util.register_pytree_node_class
class DeviceErrors(_Error):
    """An error, and after it one of each device, in arrays that are split over the devices.

    Nothing is sent where it is only passed on, as by jit. What looks at its fields, as later checks
    do, sees one error for all devices, for which a reduction tells whether a device has one.
    """

    def __init__(
        self, before: CheckError, found: CheckError, kinds: dict[type, Effect], number: int
    ):
        """An error is identified by its kind and number."""
        self.__dict__.update(before=before, found=found, kinds=kinds, number=number)

    @functools.cached_property
    def united(self) -> CheckError:
        both = self.before, _for_all_devices(self.found, self.kinds, self.number)
        fields = ((e._pred, e._code, e._metadata, e._payload) for e in both)
        return _Error(*(before | after for before, after in zip(*fields, strict=True)))

    _pred = property(lambda self: self.united._pred)
    _code = property(lambda self: self.united._code)
    _metadata = property(lambda self: self.united._metadata)
    _payload = property(lambda self: self.united._payload)

    def _replace(self, **fields: AnyValue) -> CheckError:
        return self.united._replace(**fields)

    def get_exception(self) -> CheckError:
        return _by_device(_Error.get_exception(_on_host(self)))

    def tree_flatten(self) -> tuple[tuple[CheckError, ...], TreeDef]:
        return (self.before, self.found), (tuple(self.kinds.items()), self.number)

    @classmethod
    def tree_unflatten(cls, metadata: TreeDef, data: tuple[CheckError, ...]) -> DeviceErrors:
        (before, found), (kinds, number) = data, metadata
        return cls(before, found, dict(kinds), number)


@jax.tree_util.register_pytree_node_class
class _Devices:
    """What an error for all devices holds: JAX keeps its structure, and makes exceptions of it."""

    def __init__(self, found: CheckError):
        self.found = found

    def tree_flatten(self) -> tuple[tuple[CheckError], TreeDef]:
        return (self.found,), None

    @classmethod
    def tree_unflatten(cls, metadata: TreeDef, data: tuple[CheckError]) -> CheckError:
        return _by_device(_on_host(data[0]).get_exception())


def _for_all_devices(found: CheckError, kinds: dict[type, Effect], number: int) -> CheckError:
    """An error of each kind that a device may have found, with the errors of all devices.

    Dimensions before that of the devices are those of a vmapped error.
    """
    leaves, structure = jax.tree.flatten(_Devices(found))
    if not all(isinstance(x, np.ndarray | jax.Array) for x in leaves):
        # JAX makes errors of types, too, and asks which kinds there are.
        return _Error(dict.fromkeys(kinds.values()), {}, {}, {})
    preds = {}
    for effect, pred in found._pred.items():
        kind = kinds[effect.error_type]
        preds[kind] = jnp.any(pred, -1) | preds.get(kind, False)
    codes = {kind: jnp.full(pred.shape, number, np.int32) for kind, pred in preds.items()}
    payload = [_replicated(x) for x in leaves]
    return _Error(preds, codes, {number: structure}, dict.fromkeys(preds, payload))


def _replicated(x: AnyValue) -> AnyValue:
    """A value on all devices if its type says where it is: types before and after must be equal."""
    sharding = jax.typeof(x).sharding
    if not any(sharding.spec):
        return x
    return jax.sharding.reshard(x, sharding.update(spec=PartitionSpec()))


def _on_host(error: CheckError) -> CheckError:
    """An error that is read: all processes whose devices have a part of it must do that."""

    def fetch(x):
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return multihost_utils.process_allgather(x, tiled=True)
        return x

    return jax.device_get(jax.tree.map(fetch, error))


def _by_device(exception: CheckError) -> CheckError:
    """An exception of several devices of which some may again stand for several."""
    places = getattr(exception, "error_mapping", None)
    if places is None:
        return exception
    return type(exception)(
        {
            (*place, *further): each
            for place, one in places.items()
            for further, each in getattr(one, "error_mapping", {(): one}).items()
        }
    )
