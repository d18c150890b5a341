"""Values of inputs from the command line, and comparison of outputs with expected values."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from occamy_xdsl.errors import InvalidInputError
from occamy_xdsl.lowering.signature import ELEMENT_TYPES, TensorSpec
from occamy_xdsl.runtime.executable import Array, as_input

SYNTAX = "NAME=@FILE.npy, NAME=@FILE.pb, NAME=VALUES, NAME:1x3xf32=VALUES, NAME=random:SEED or random:SEED"
"""The forms of a value on the command line; VALUES is one number for all elements, or all numbers."""

RTOL, ATOL = 1e-3, 1e-5
"""Default tolerances: float32 sums of thousands of terms, computed in another order, stay within them."""


def parse_inputs(options: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """
    The inputs that the command line gives, each option in one of the forms of `SYNTAX`.

    `random:SEED` gives all inputs that no other option names. Raises InvalidInputError.
    """
    values: dict[str, Array] = {}
    seed: int | None = None
    for option in options:
        if option.startswith("random:") and all(not _names(option, spec) for spec in specs):
            if seed is not None:
                raise InvalidInputError(f"'{option}': the seed of all other inputs is given twice")
            seed = _parse_seed(option, option)
            continue
        spec = _spec_of(option, specs, "input")
        if spec.name in values:
            raise InvalidInputError(f"input '{spec.name}' is given twice")
        values[spec.name] = _parse_value(option, spec, specs.index(spec))
    if seed is not None:
        for position, spec in enumerate(specs):
            if spec.name not in values:
                values[spec.name] = random_tensor(spec, seed, position)
    return values


def parse_expectations(options: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The expected outputs that the command line gives, in the forms of `parse_inputs` except random."""
    values: dict[str, Array] = {}
    for option in options:
        spec = _spec_of(option, specs, "output")
        if spec.name in values:
            raise InvalidInputError(f"output '{spec.name}' is given twice")
        values[spec.name] = _parse_value(option, spec, specs.index(spec))
    return values


def random_tensor(spec: TensorSpec, seed: int, position: int) -> Array:
    """
    A reproducible random value for the tensor at `position` of its list.

    Floats are standard normal. 8-bit integers cover their range; wider ones are 0 to 9, which more often than
    not is valid for indices and counts.
    """
    generator = np.random.default_rng([seed, position])
    dtype = spec.element.numpy
    if dtype.kind == "b":
        return generator.integers(0, 2, spec.shape, np.uint8).astype(np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (int(limits.min), int(limits.max) + 1) if dtype.itemsize == 1 else (0, 10)
        return generator.integers(low, high, spec.shape, dtype)
    if dtype == np.float64:
        return np.asarray(generator.standard_normal(spec.shape))
    return np.asarray(generator.standard_normal(spec.shape, np.float32)).astype(dtype)


def read_tensor(path: Path, spec: TensorSpec) -> Array:
    """
    The array in a .npy file or a .pb file (ONNX TensorProto).

    Raises InvalidInputError that names the file if it cannot be read or has another dtype or shape.
    """
    try:
        if path.suffix == ".pb":
            # onnx takes long to import, and most runs need no protobuf.
            import onnx

            tensor = onnx.TensorProto.FromString(path.read_bytes())
            array: Array = onnx.numpy_helper.to_array(tensor)
        else:
            with path.open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # numpy and protobuf raise many types on malformed files
        raise InvalidInputError(f"{path}: {error}".splitlines()[0]) from None
    if array.dtype.kind == "V" and spec.dtype == "bfloat16" and array.dtype.itemsize == 2:
        array = array.view(spec.element.numpy)  # .npy files have no name for bfloat16
    try:
        return as_input(spec, array)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {str(error).removeprefix('input ')}") from None


def _names(option: str, spec: TensorSpec) -> bool:
    return option.startswith((f"{spec.name}=", f"{spec.name}:"))


def _spec_of(option: str, specs: Sequence[TensorSpec], kind: str) -> TensorSpec:
    """The tensor that `option` is about: names may have `:` and `=` in them, the longest match counts."""
    matches = [spec for spec in specs if _names(option, spec)]
    if not matches:
        names = ", ".join(spec.name for spec in specs) or "none"
        raise InvalidInputError(
            f"'{option}' gives no value to any {kind}, the {kind}s are: {names}; forms: {SYNTAX}"
        )
    return max(matches, key=lambda spec: len(spec.name))


def _parse_value(option: str, spec: TensorSpec, position: int) -> Array:
    """The value of an option `NAME[:TYPE]=VALUE` for `spec`."""
    type_text, equals, text = option[len(spec.name) :].partition("=")
    if not equals:
        raise InvalidInputError(f"'{option}' has no value; forms: {SYNTAX}")
    if type_text:
        _check_declared(option, type_text[1:], spec)
    if text.startswith("@"):
        return read_tensor(Path(text[1:]), spec)
    if text.startswith("random:"):
        return random_tensor(spec, _parse_seed(text, option), position)
    return _parse_numbers(text, option, spec)


def files_of(options: Sequence[str]) -> list[Path]:
    """The files that options in the forms of `SYNTAX` name, those after every `=@` of an option."""
    return [
        Path(option[at + 2 :])
        for option in options
        for at in range(len(option))
        if option[at : at + 2] == "=@"
    ]


def _parse_seed(text: str, option: str) -> int:
    seed = text.removeprefix("random:")
    if not (seed.isascii() and seed.isdigit()):
        raise InvalidInputError(f"'{option}': the seed must be a non-negative integer, got '{seed}'")
    return int(seed)


def _check_declared(option: str, text: str, spec: TensorSpec) -> None:
    """Compare a type such as `1x3xf32` with `spec`."""
    *dimensions, element = text.split("x")
    if element not in (spec.dtype, spec.element.mlir):
        known = element in ELEMENT_TYPES or any(element == known.mlir for known in ELEMENT_TYPES.values())
        fact = f"expected {spec}" if known else f"'{element}' is no element type"
        raise InvalidInputError(f"'{option}': {fact}")
    if dimensions != [str(dimension) for dimension in spec.shape]:
        raise InvalidInputError(f"'{option}': expected {spec}")


def _parse_numbers(text: str, option: str, spec: TensorSpec) -> Array:
    """One number for all elements or all numbers in row-major order, separated by commas or spaces."""
    dtype = spec.element.numpy
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    try:
        if dtype.kind == "b":
            numbers = [{"true": True, "1": True, "false": False, "0": False}[word.lower()] for word in words]
        elif dtype.kind in "iu":
            numbers = [int(word, 0) for word in words]
        else:
            numbers = [float(word) for word in words]
        values = np.array(numbers, dtype)
    except (KeyError, ValueError, OverflowError):
        raise InvalidInputError(f"'{option}': not values of type {spec.dtype}: '{text}'") from None
    if values.size == 1:
        return np.full(spec.shape, values[0], dtype)
    if values.size != np.prod(spec.shape, dtype=np.int64):
        raise InvalidInputError(f"'{option}': {values.size} values, expected one or all of {spec}")
    return values.reshape(spec.shape)


@dataclass(frozen=True)
class Comparison:
    """How an output differs from its expected value."""

    name: str
    mismatches: int
    """Elements outside the tolerance."""
    elements: int
    max_difference: float
    """Largest |got - want|; NaN if only one of the two is NaN somewhere, 0 if both are."""
    max_relative: float
    """`max_difference` divided by the largest finite |want|."""
    worst: tuple[int, ...] | None
    """Index of the element that exceeds its tolerance most."""

    @property
    def equal(self) -> bool:
        """Whether every element is within the tolerance."""
        return self.mismatches == 0

    def __str__(self) -> str:
        verdict = "equal" if self.equal else f"{self.mismatches} of {self.elements} elements differ"
        place = "" if self.worst is None else f", worst at [{','.join(map(str, self.worst))}]"
        return (
            f"output '{self.name}': {verdict}, max difference {self.max_difference:.3g} "
            f"({self.max_relative:.3g} of the largest value){place}"
        )


def compare(name: str, got: Array, want: Array, rtol: float = RTOL, atol: float = ATOL) -> Comparison:
    """
    Compare an output with its expected value, of the same shape, as numpy.allclose does.

    An element is equal if |got - want| <= atol + rtol * |want|. NaN equals NaN, and infinities of the same
    sign are equal. Differences of integers are exact.
    """
    if got.shape != want.shape:
        raise InvalidInputError(f"output '{name}': shape {got.shape}, expected value has {want.shape}")
    actual, expected = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        if got.dtype == want.dtype and got.dtype.kind in "iu":
            # Modulo 2**64 the difference is right even where its operands are negative.
            low, high = np.minimum(got, want).astype(np.uint64), np.maximum(got, want).astype(np.uint64)
            difference = (high - low).astype(np.float64)
        else:
            same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
            difference = np.where(same, 0.0, np.abs(actual - expected))
        excess = difference - (atol + rtol * np.where(finite, np.abs(expected), 0.0))
    # A difference that is NaN or infinite is beyond every tolerance.
    wrong = ~(excess <= 0)
    largest = float(np.max(np.abs(expected), where=finite, initial=0.0))
    max_difference = float(np.max(difference, initial=0.0))
    worst = None
    if wrong.any():
        ranked = np.where(wrong, np.nan_to_num(excess, nan=np.inf), -np.inf)
        worst = tuple(int(index) for index in np.unravel_index(int(np.argmax(ranked)), got.shape))
    return Comparison(
        name,
        int(np.count_nonzero(wrong)),
        got.size,
        max_difference,
        max_difference / largest if largest else (0.0 if max_difference == 0 else float("inf")),
        worst,
    )
