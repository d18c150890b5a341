"""
Compiles the networks that a GPU is checked with, on a machine that need not have one.

Every network of `networks` becomes a folder with its library, the outputs that ONNX Runtime gives for random inputs,
and the model for other frameworks. What is there already is left alone unless `--again` is given.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gpu_check
import networks
import numpy as np
from onnx import GraphProto, ModelProto, numpy_helper

import occamy_xdsl as oc
from occamy_xdsl.compiler import Compilation
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.pipelines import Options
from occamy_xdsl.tools.reference import onnxruntime

PERIOD = 4093
"""Length of the table of random numbers that large weights repeat; prime, so that no two rows are alike."""

LARGE = 1 << 20
"""Elements of an output above which not all bits are carried."""

TWICE = ("paper/alexnet", "paper/densenet121", "paper/resnet50", "paper/vgg19")
"""Networks of the paper that are `light` ones, too."""


def compressible(model: ModelProto) -> ModelProto:
    """
    `model` with large random weights that repeat one table, times a power of two, and one factor for all channels.

    The table of a power of two is the same in all tensors and networks, even after normalisations are folded into
    them, so that a pack holds it once. The time of a network does not depend on the values, and a wrong result still
    shows.
    """
    table = np.random.default_rng(0).standard_normal(PERIOD).astype(np.float32)
    result = ModelProto()
    result.CopyFrom(model)
    factors = _factors(result.graph)
    for tensor in result.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype != np.float32 or array.size == 1:
            continue
        if tensor.name in factors:
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, _power_of_two(array)), tensor.name))
        elif array.size > PERIOD:
            values = np.resize(table, array.shape) * np.float32(_power_of_two(array))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return result


def _factors(graph: GraphProto) -> set[str]:
    """Names of what normalisations and products multiply by, which may be folded into weights."""
    made = {name: node for node in graph.node for name in node.output}
    found: set[str] = set()
    for node in graph.node:
        operands = {"BatchNormalization": node.input[1:5:3], "Mul": node.input}.get(node.op_type, ())
        for name in operands:
            while name in made and made[name].op_type == "Unsqueeze":
                name = made[name].input[0]
            found.add(name)
    return found


def _power_of_two(array: np.ndarray) -> float:
    """The one nearest to the root mean square of the elements; 0 if all are 0."""
    mean_square = float(np.mean(np.square(array, dtype=np.float64)))
    return 2.0 ** round(np.log2(mean_square) / 2) if mean_square else 0.0


def rounded(array: np.ndarray) -> np.ndarray:
    """
    An expected output as it is carried: f32 of more than LARGE elements with 16 bits of mantissa, the nearest.

    That changes no element by more than 2^-17 of itself, an eighth of the difference that `gpu_check` allows.
    """
    if array.dtype != np.float32 or array.size <= LARGE:
        return array
    bits = array.view(np.uint32)
    finite = np.isfinite(array)
    return np.where(finite, (bits + 0x3F + (bits >> 7 & 1)) & ~np.uint32(0x7F), bits).view(np.float32)


def prepare(net: str, target: str, folder: Path) -> None:
    """Fill `folder` with what the check of a network needs."""
    model = compressible(networks.networks()[net]())
    loaded = oc.load(model)
    with tempfile.TemporaryDirectory() as temporary:
        compiled = Compilation(loaded, Options(target=target)).compiled(Path(temporary))
        folder.mkdir(parents=True, exist_ok=True)
        write_library(compiled, folder / "model.so")
    outputs = onnxruntime(loaded, exact=True)(gpu_check.random_values(compiled.signature.inputs))
    np.savez(folder / "expected.npz", **{name: rounded(array) for name, array in outputs.items()})
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    # Last: a folder with this file is complete.
    record = {"net": net, "target": target, "inputs": [vars(spec) for spec in compiled.signature.inputs]}
    (folder / "net.json").write_text(json.dumps(record) + "\n")


def chosen(names: Sequence[str]) -> list[str]:
    """Networks by name or by the part before the slash; without any, each once."""
    known = list(networks.networks())
    if not names:
        return [net for net in known if net not in TWICE]
    if unknown := [name for name in names if not any(name in (net, net.partition("/")[0]) for net in known)]:
        raise SystemExit(f"no network {', '.join(unknown)}; there are {', '.join(known)}")
    return [net for net in known if net in names or net.partition("/")[0] in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the folders of networks")
    options = parser.parse_args()
    failed = 0
    for net in chosen(options.nets):
        folder = options.output / net.replace("/", "-")
        record = folder / "net.json"
        if not options.again and record.is_file():
            if json.loads(record.read_text())["target"] != options.target:
                raise SystemExit(f"{folder}: made for another target; --again makes all anew")
            continue
        try:
            prepare(net, options.target, folder)
            print(f"{net:<32} prepared", flush=True)
        except oc.OccamyError as error:
            failed += 1
            print(f"{net:<32} {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
