# SPDX-License-Identifier: Apache-2.0
"""Arrays of each framework: new outputs, index tensors. No framework is imported before an array of its own comes."""

from __future__ import annotations

import sys
from typing import Any

# Names of the C ABI, of numpy and of PyTorch -> tegula_dtype's number.
DTYPES = {
    "f32": 1, "float32": 1, "f16": 2, "float16": 2, "bf16": 3, "bfloat16": 3,
    "e4m3": 4, "float8_e4m3fn": 4, "e5m2": 5, "float8_e5m2": 5,
}  # fmt: skip
LONG_NAMES = {1: "float32", 2: "float16", 3: "bfloat16", 4: "float8_e4m3fn", 5: "float8_e5m2"}


def dtype_number(dtype: Any, argument: str) -> int:
    """A dtype by name or as a framework's object; 0 for None."""
    if dtype is None:
        return 0
    # torch.bfloat16 -> "torch.bfloat16"; numpy's types and dtypes have a name of their own.
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    number = DTYPES.get(name.rpartition(".")[2])
    if number is None:
        raise TypeError(f"{argument}: {dtype!r} is none of {', '.join(DTYPES)}")
    return number


def packed(values: Any) -> Any:
    """Index arrays are small: a last stride that is not 1 is copied away. Rows may stay apart (a slice of a page table)."""
    module = type(values).__module__.partition(".")[0]
    if not values.ndim or values.shape[-1] < 2:
        return values
    if module == "torch":
        return values if values.stride(-1) == 1 else values.contiguous()
    return values if values.strides[-1] == values.itemsize else values.copy()


LEAST, MOST = -(2**31), 2**31 - 1


def not_integers(values: Any, name: str) -> TypeError:
    return TypeError(f"{name}: {getattr(values, 'dtype', type(values).__name__)} where integers are taken")


class Torch:
    """torch.Tensor and its subclasses."""

    immutable = False

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.float32 = torch.float32
        self.int32 = torch.int32

    def is_8bit(self, array: Any) -> bool:
        return array.dtype.itemsize == 1

    def empty(self, shape: tuple, like: Any, dtype: int) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, LONG_NAMES[dtype]) if dtype else like.dtype, device=like.device)

    def empty_lse(self, shape: tuple, like: Any) -> Any:
        return self.torch.empty(shape, dtype=self.float32, device=like.device)

    def index(self, values: Any, like: Any, name: str) -> Any:
        if not isinstance(values, self.torch.Tensor):
            if hasattr(values, "__dlpack__"):
                values = framework_of(values, name).index(values, values, name)
            try:
                values = self.torch.as_tensor(values)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise not_integers(values, name) from None
            if values.numel() and (values.is_floating_point() or values.is_complex() or values.dtype == self.torch.bool):
                raise not_integers(values, name)
            values = values.to(like.device, self.int32 if not values.numel() else values.dtype)
        if values.dtype == self.torch.int64:
            # What 32 bits do not hold stays out of every range, and an entry that nobody reads harms nobody.
            values = values.clamp(LEAST, MOST).to(self.int32)
        return values if values.is_contiguous() else packed(values)

    def finish(self, array: Any) -> Any:
        return array

    def check_grad(self, arrays: tuple) -> None:
        if not self.torch.is_grad_enabled():
            return
        for name, array in arrays:
            if array is not None and getattr(array, "requires_grad", False):
                raise RuntimeError(
                    f"{name}: requires_grad, and there is no backward yet; call under torch.no_grad() or detach it"
                )


class Numpy:
    """numpy.ndarray, with the types of ml_dtypes."""

    immutable = False

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def is_8bit(self, array: Any) -> bool:
        return array.dtype.itemsize == 1

    def dtype(self, number: int) -> Any:
        if number <= 2:
            return self.numpy.dtype(LONG_NAMES[number])
        import ml_dtypes

        return self.numpy.dtype(getattr(ml_dtypes, LONG_NAMES[number]))

    def empty(self, shape: tuple, like: Any, dtype: int) -> Any:
        return self.numpy.empty(shape, self.dtype(dtype) if dtype else like.dtype)

    def empty_lse(self, shape: tuple, like: Any) -> Any:
        return self.numpy.empty(shape, self.numpy.float32)

    def index(self, values: Any, like: Any, name: str) -> Any:
        if not isinstance(values, self.numpy.ndarray):
            if hasattr(values, "__dlpack__"):
                return framework_of(values, name).index(values, values, name)
            try:
                values = self.numpy.asarray(values)
            except (TypeError, ValueError, OverflowError):
                raise not_integers(values, name) from None
            if values.size and values.dtype.kind not in "iu":
                raise not_integers(values, name)
            values = values.astype(self.numpy.int64)
        if values.dtype == self.numpy.int64:
            values = self.numpy.asarray(self.numpy.clip(values, LEAST, MOST), self.numpy.int32)
        return packed(values)

    def finish(self, array: Any) -> Any:
        return array

    def check_grad(self, arrays: tuple) -> None:
        pass


class Jax:
    """jax.Array, outside jit. Arrays are immutable: outputs are made as numpy arrays and handed over."""

    immutable = True

    def __init__(self) -> None:
        import jax

        self.jax = jax
        self.host = Numpy()

    def _check(self, array: Any) -> None:
        if isinstance(array, self.jax.core.Tracer):
            raise TypeError("q: a traced jax array; tegula is called outside jit")
        if any(device.platform != "cpu" for device in array.devices()):
            raise NotImplementedError("q: a jax array on a GPU; hand it over as another framework's array through DLPack")

    def is_8bit(self, array: Any) -> bool:
        return array.dtype.itemsize == 1

    def empty(self, shape: tuple, like: Any, dtype: int) -> Any:
        self._check(like)
        return self.host.empty(shape, like, dtype)

    def empty_lse(self, shape: tuple, like: Any) -> Any:
        return self.host.empty_lse(shape, like)

    def index(self, values: Any, like: Any, name: str) -> Any:
        # 64-bit jax arrays exist only where they are switched on.
        if getattr(values, "dtype", None) == "int32":
            return values
        if isinstance(values, self.jax.Array):
            values = self.host.numpy.asarray(values)
        return self.host.index(values, like, name)

    def finish(self, array: Any) -> Any:
        return self.jax.numpy.asarray(array)

    def check_grad(self, arrays: tuple) -> None:
        pass


class Generic:
    """Anything else with DLPack and a module of the array API's `empty` (cupy, and what follows it)."""

    immutable = False

    def __init__(self, module: Any) -> None:
        self.module = module

    def is_8bit(self, array: Any) -> bool:
        return array.dtype.itemsize == 1

    def _empty(self, shape: tuple, dtype: Any, like: Any) -> Any:
        if not hasattr(self.module, "empty"):
            raise TypeError(
                f"q: {type(like).__name__} has no `empty` in its module to make outputs with; bring out= and lse_out="
            )
        device = getattr(like, "device", None)
        if hasattr(device, "__enter__"):  # cupy: the device is a context
            with device:
                return self.module.empty(shape, dtype=dtype)
        return self.module.empty(shape, dtype=dtype)

    def empty(self, shape: tuple, like: Any, dtype: int) -> Any:
        return self._empty(shape, LONG_NAMES[dtype] if dtype else like.dtype, like)

    def empty_lse(self, shape: tuple, like: Any) -> Any:
        return self._empty(shape, "float32", like)

    def index(self, values: Any, like: Any, name: str) -> Any:
        if not hasattr(values, "__dlpack__"):
            if not hasattr(self.module, "asarray"):
                raise not_integers(values, name)
            values = self.module.asarray(values)
        if getattr(type(values), "__module__", "").partition(".")[0] in ("torch", "numpy", "jax", "jaxlib"):
            return framework_of(values, name).index(values, values, name)
        if str(getattr(values, "dtype", "")) == "int64":
            values = self.module.clip(values, LEAST, MOST).astype("int32")
        return values

    def finish(self, array: Any) -> Any:
        return array

    def check_grad(self, arrays: tuple) -> None:
        pass


_frameworks: dict[type, Any] = {}
_shared: dict[str, Any] = {}


def framework_of(array: Any, name: str = "q") -> Any:
    """What makes arrays like this one; name: of the argument, for errors."""
    known = _frameworks.get(type(array))
    return known if known is not None else _find(array, name)


def _find(array: Any, argument: str) -> Any:
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        makers = {"torch": Torch, "numpy": Numpy, "jax": Jax, "jaxlib": Jax}
        if root in makers and (hasattr(array, "__dlpack__") or hasattr(array, "__array_interface__")):
            name = makers[root].__name__
            if name not in _shared:
                _shared[name] = makers[root]()
            _frameworks[type(array)] = _shared[name]
            return _shared[name]
    if hasattr(array, "__dlpack__"):
        return Generic(sys.modules.get(type(array).__module__.partition(".")[0]))
    raise TypeError(f"{argument}: {type(array).__name__} is no array: it has neither __dlpack__ nor __array_interface__")
