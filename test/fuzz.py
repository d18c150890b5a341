"""
Compiles random networks in every way, and compares what they compute with ONNX Runtime: `make fuzz`.

Each network runs in a process of its own, so that a crash is one failure. A model that fails is made smaller while it
fails in the same way, and saved beside its inputs.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from resource import RLIMIT_CPU, setrlimit
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, save
from random_nets import (
    Case,
    RefusedError,
    change,
    disturbed,
    evaluate,
    free_names,
    random_case,
    simplified,
    subgraphs,
)
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import PassPipeline

from occamy_xdsl.compiler import Compilation, Model, compile_to_memory
from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.errors import MemoryLimitError, UnsupportedModelError
from occamy_xdsl.importer import import_model
from occamy_xdsl.interpreters.buffer import run_buffers
from occamy_xdsl.interpreters.value import run_values
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.pipeline_run import available_passes, make_context
from occamy_xdsl.pipelines import Options, stages
from occamy_xdsl.runtime.executable import POISON, Executable, LibraryModel

Array = NDArray[Any]

SECONDS = 120
"""Longest CPU time for all ways of one network; more is a failure."""
SHRINK_SECONDS = 60
GUARD = 4096
"""Bytes on both sides of each buffer that must stay as they are."""

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-fuse": {"fuse": False},
    "no-reuse": {"reuse": False},
    "no-inplace": {"in_place": False},
    "no-reorder": {"reorder": False},
    "nothing": {"fuse": False, "in_place": False, "reorder": False},
    "first-fit": {"planner": "first-fit"},
    "best-fit": {"planner": "best-fit"},
    "greedy-by-size": {"planner": "greedy-by-size", "fuse": False},
    "eager": {"memory": "eager"},
    "lazy": {"memory": "lazy"},
    "lazy-no-fuse": {"memory": "lazy", "fuse": False},
    "stream": {"stream_weights": True},
    "stream-eager": {"stream_weights": True, "memory": "eager"},
    "memory": {"optimize": "memory"},
    "speed": {"optimize": "speed"},
    "stripes": {"stripe_budget": 1000},
    "stripes-no-fuse": {"stripe_budget": 1000, "fuse": False},
    "recompute": {"recompute_budget": 1000},
    "stripes-recompute": {"stripe_budget": 1000, "recompute_budget": 1000},
    "stripes-recompute-no-inplace": {
        "stripe_budget": 1000,
        "recompute_budget": 1000,
        "in_place": False,
        "stream_weights": True,
    },
    "avx2": {"target": "cpu:x86-64-v3"},
    "sse": {"target": "cpu:x86-64-v2"},
    "sse-stripes": {"target": "cpu:x86-64-v2", "stripe_budget": 1000, "fuse": False},
    "limit": {},
    "gpu": {"target": "cuda:sm_75"},
    "gpu-no-fuse": {"target": "cuda:sm_75", "fuse": False},
    "gpu-stripes": {"target": "cuda:sm_75", "stripe_budget": 1000, "recompute_budget": 1000},
    "gpu-lazy": {"target": "cuda:sm_75", "memory": "lazy"},
    "gpu-stream": {"target": "cuda:sm_75", "stream_weights": True},
}
"""Options of a compilation, by name; `limit` tries limits around the size of the default pool."""


@dataclass(frozen=True)
class Sample:
    """Inputs, the outputs that ONNX Runtime computes, and by how much each may be missed."""

    inputs: dict[str, Array]
    want: dict[str, Array]
    tolerance: dict[str, float]

    def check(self, got: Mapping[str, Array], where: str) -> None:
        """Raises AssertionError where an output differs."""
        assert list(got) == list(self.want), where
        for name, want in self.want.items():
            mine = got[name]
            assert (mine.shape, mine.dtype) == (want.shape, want.dtype), f"{where}: type of {name}"
            if want.dtype.kind != "f":
                np.testing.assert_array_equal(mine, want, err_msg=f"{where}: {name}")
            elif want.size:
                atol = self.tolerance[name] * float(np.nanmax(np.abs(want), initial=0)) + 1e-6
                np.testing.assert_allclose(mine, want, rtol=1e-4, atol=atol, err_msg=f"{where}: {name}")


def samples(case: Case) -> list[Sample]:
    """The inputs of the case, and others with which the model is well-conditioned; raises RefusedError for neither."""
    rng = np.random.default_rng(0)
    others = dict[str, Array]()
    for name, array in case.inputs.items():
        if array.dtype.kind == "f":
            others[name] = np.asarray(rng.standard_normal(array.shape) * 1.5, array.dtype)
        else:  # indices stay in their range
            others[name] = rng.permutation(array.reshape(-1)).reshape(array.shape)
    found = list[Sample]()
    for inputs in (case.inputs, others):
        try:
            want = evaluate(case.model, inputs)
            near = [
                evaluate(case.model, {n: disturbed(a, rng, sign) for n, a in inputs.items()})
                for sign in (-1, 0, 1)
            ]
        except RefusedError:
            continue
        changes = {n: max(change(a, other[n]) for other in near) for n, a in want.items()}
        if not all(c < 0.01 for c in changes.values()):  # NaN, too, is ill-conditioned
            continue
        base = 5e-3 if uses_half(case.model.graph) else 1e-5
        found.append(Sample(inputs, want, {n: base + c for n, c in changes.items()}))
    if not found:
        raise RefusedError("ill-conditioned, or not taken by ONNX Runtime")
    return found


def uses_half(graph: GraphProto) -> bool:
    """Whether something is rounded to 16 bits, which small differences may decide."""
    return any(
        (node.op_type == "Cast" and helper.get_node_attr_value(node, "to") == TensorProto.FLOAT16)
        or any(map(uses_half, subgraphs(node)))
        for node in graph.node
    )


# ---- Ways to compute


def interpret(module: ModuleOp, sample: Sample, where: str) -> None:
    """Runs a program of the dnn dialect in numpy, on memory that knows what each byte holds."""
    run = run_values if function_named(module).function_type.outputs.data else run_buffers
    got = run(module, list(sample.inputs.values()))
    sample.check(dict(zip(sample.want, got, strict=True)), where)


def check_passes(case: Case, options: Options, tried: Sequence[Sample]) -> None:
    """Interprets the program after each pass."""
    context, passes = make_context(), available_passes()
    module = import_model(case.model)
    for stage in stages(options)[:-1]:
        for text in stage.passes:
            PassPipeline.parse_spec(passes, text).apply(context, module)
            module.verify()
            if text.startswith("onnx-"):
                continue
            for sample in tried:
                interpret(module, sample, f"after {text.partition('{')[0]}")


class Guarded:
    """`size` bytes at a multiple of 256, between guards."""

    def __init__(self, size: int):
        storage = np.full(size + 2 * GUARD + 256, POISON, np.uint8)
        start = -storage.ctypes.data % 256
        self._whole, self._size = storage[start : start + size + 2 * GUARD], size
        self.bytes = self._whole[GUARD : GUARD + size]

    def array(self, like: Array) -> Array:
        """The bytes as an array of the type of `like`."""
        return self.bytes.view(like.dtype).reshape(like.shape)

    def check(self, what: str) -> None:
        """Raises AssertionError where something wrote outside."""
        for guard in (self._whole[:GUARD], self._whole[GUARD + self._size :]):
            assert (guard == POISON).all(), f"code: wrote outside of {what}"


def check_code(compilation: Compilation, tried: Sequence[Sample]) -> None:
    """Runs compiled code twice for each sample, in poisoned memory between guards."""
    executable = compile_to_memory(compilation)
    if compilation.options.memory == "pool":
        assert executable.pool_bytes == compilation.report().pool_bytes, "report: pool_bytes"
    pool = Guarded(max(1, executable.pool_bytes))
    call = executable._model.bind(pool.bytes.ctypes.data)
    for sample in tried:
        for _ in range(2):
            pool.bytes.fill(POISON)
            inputs, outputs = (
                {n: Guarded(a.nbytes) for n, a in d.items()} for d in (sample.inputs, sample.want)
            )
            for name, array in sample.inputs.items():
                inputs[name].array(array)[...] = array
            call(
                [buffer.bytes.ctypes.data for buffer in inputs.values()],
                [buffer.bytes.ctypes.data for buffer in outputs.values()],
            )
            sample.check({n: outputs[n].array(a) for n, a in sample.want.items()}, "code")
            for name, buffer in {**inputs, **outputs, "the pool": pool}.items():
                buffer.check(name)
            for name, array in sample.inputs.items():
                np.testing.assert_array_equal(inputs[name].array(array), array, f"code: wrote input {name}")


def check_limits(case: Case, tried: Sequence[Sample]) -> None:
    """A limit that is met is kept, and one that is not is refused."""
    pool = Compilation(Model(case.model), Options()).report().pool_bytes
    exact = Compilation(Model(case.model), Options(memory_limit=pool))
    assert exact.report().pool_bytes <= pool, "limit: not kept"
    for limit in (pool - 1, pool // 2):
        if limit < 0:
            continue
        below = Compilation(Model(case.model), Options(memory_limit=limit))
        try:
            below.run_to("mem")
        except MemoryLimitError as error:
            needed = error.needed
        else:
            needed = 0
        if needed:
            assert needed > limit, "limit: refused though met"
        else:
            assert below.report().pool_bytes <= limit, "limit: not kept"
            check_code(below, tried)


def check_gpu(compilation: Compilation, tried: Sequence[Sample]) -> None:
    """Runs GPU code twice under the simulator."""
    from occamy_xdsl.simulator import Simulator

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "model.so")
        write_library(
            compilation.compiled(Path(folder)),
            library,
            "file" if compilation.options.stream_weights else "embed",
        )
        with Simulator(architecture="sm_75"):
            executable = Executable(LibraryModel(library))
            for sample in tried:
                for _ in range(2):
                    sample.check(executable.run(sample.inputs), "gpu code")
            del executable


def check(case: Case, way: str, *, generate: bool = True) -> None:
    """Raises what is wrong with a model that is compiled in one way, UnsupportedModelError for one that is refused."""
    tried = samples(case)
    options = Options(**WAYS[way])
    if way == "limit":
        check_limits(case, tried)
        return
    compilation = Compilation(Model(case.model), options)
    compilation.run_to("mem")
    try:
        for sample in tried:
            interpret(compilation.module, sample, "after all passes")
    except Exception:
        check_passes(case, options, tried)  # which of them was it?
        raise
    if generate:
        (check_gpu if options.is_cuda else check_code)(compilation, tried)


def digest(case: Case, way: str) -> str:
    """A hash of the lowered program."""
    try:
        return sha256(Compilation(Model(case.model), Options(**WAYS[way])).ir("mlir").encode()).hexdigest()
    except UnsupportedModelError:
        return "refused"


# ---- Outcomes


@dataclass
class Outcome:
    """What became of one network."""

    checks: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[str] = field(default_factory=Counter[str])
    failures: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Kind and text of each failure, by the way."""


def attempt(case: Case, ways: Sequence[str], *, generate: bool = True) -> Outcome:
    """The outcome of some ways, in this process."""
    outcome = Outcome()
    for way in ways:
        try:
            check(case, way, generate=generate)
        except RefusedError as error:
            outcome.refusals[f"generator: {error}"] += 1
        except UnsupportedModelError as error:
            reasons = {f"{op}: {reason}" for _, op, reason in error.nodes} or {str(error)}
            outcome.refusals.update(f"{way.partition('-')[0]}: {reason}" for reason in reasons)
        except Exception as error:
            outcome.failures[way] = kind_of(error), traceback.format_exc()
        else:
            outcome.checks[way] += 1
    return outcome


def kind_of(error: Exception) -> str:
    """What failures of one cause have in common."""
    if isinstance(error, AssertionError) and error.__traceback__ is not None:
        text = str(error).strip()
        for line in text.splitlines():
            if line.startswith(("after ", "code", "gpu code", "report", "limit")):
                return line.rpartition(": ")[0] or line
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "occamy_xdsl" in f.filename]
    where = f" in {Path(frames[-1].filename).name}: {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{where}"


def isolated(case: Case, ways: Sequence[str], *, generate: bool = True) -> Outcome:
    """The outcome of some ways, in a child process."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        try:
            setrlimit(RLIMIT_CPU, (SECONDS, SECONDS))
            with os.fdopen(send, "wb") as pipe:
                pickle.dump(attempt(case, ways, generate=generate), pipe)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if data:
        return pickle.loads(data)
    kind = f"crashed with status {status}"
    if len(ways) == 1:
        return Outcome(failures={ways[0]: (kind, kind)})
    # Which of them was it?
    total = Outcome()
    for way in ways:
        one = isolated(case, [way], generate=generate)
        total.checks += one.checks
        total.refusals += one.refusals
        total.failures |= one.failures
    return total


# ---- Smaller models


def without(case: Case, nodes: set[int], outputs: Sequence[str], values: Mapping[str, Array]) -> Case:
    """The case without some nodes, whose results become inputs, and with some of the outputs."""
    model = ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    kept = [node for i, node in enumerate(case.model.graph.node) if i not in nodes]
    needed, live = set(outputs), list[Any]()
    for node in reversed(kept):  # nodes that nothing needs go, too
        if needed & set(node.output):
            live.insert(0, node)
            needed |= set(free_names([node]))
    del graph.node[:], graph.output[:]
    graph.node.extend(live)
    given = {o for i in nodes for o in case.model.graph.node[i].output if o in needed}
    for name in sorted(given):
        kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, values[name].shape))
    for name in outputs:
        kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
        graph.output.append(helper.make_tensor_value_info(name, kind, values[name].shape))
    return simplified(Case(model, {**case.inputs, **{name: values[name] for name in given}}))


def all_values(case: Case) -> dict[str, Array]:
    """Every value at the top of a model."""
    model = ModelProto()
    model.CopyFrom(case.model)
    known = {o.name for o in model.graph.output}
    for node in case.model.graph.node:
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(n) for n in node.output if n and n not in known
        )
    return evaluate(model, case.inputs)


def smaller(case: Case) -> Iterator[Case]:
    """Cases with fewer outputs or nodes, the smallest first."""
    outputs = [o.name for o in case.model.graph.output]
    values = all_values(case)
    count = len(case.model.graph.node)
    if len(outputs) > 1:
        yield from (without(case, set(), [name], values) for name in outputs)
        yield from (without(case, set(), [n for n in outputs if n != name], values) for name in outputs)
    for size in (count // 2, count // 4, 1):
        if size:
            yield from (
                without(case, set(range(i, i + size)), outputs, values)
                for i in range(0, count, size)
                if not set(outputs) & {o for n in case.model.graph.node[i : i + size] for o in n.output}
            )
    for node in case.model.graph.node:
        if node.output[0] not in outputs:
            yield without(case, set(), [node.output[0]], values)


def shrunk(case: Case, way: str, kind: str, seconds: float = SHRINK_SECONDS) -> Case:
    """A smaller case that fails in the same way, found in limited time."""
    end = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for other in smaller(case):
            if time.monotonic() > end:
                return case
            sizes = [(len(c.model.graph.node), len(c.model.graph.output)) for c in (other, case)]
            if sizes[0] >= sizes[1]:
                continue
            if isolated(other, [way]).failures.get(way, ("",))[0] == kind:
                case, again = other, True
                break
    return case


def store(case: Case, path: Path, way: str, text: str) -> None:
    """Writes the model, its inputs and the failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(case.model, path.with_suffix(".onnx"))
    np.savez(path.with_suffix(".npz"), **case.inputs)
    path.with_suffix(".txt").write_text(f"{way} {WAYS[way]}\n{text}")


# ---- Many networks


def ways_of(seed: int, count: int, only: str = "") -> list[str]:
    """The default, and `count` other ways that depend on the seed."""
    if only:
        return [way for way in WAYS if way.startswith(only)]
    rng = np.random.default_rng([seed, 1])
    others = [way for way in WAYS if way != "default" and not way.startswith("gpu")]
    chosen = ["default", *(others[int(i)] for i in rng.choice(len(others), count, replace=False))]
    if seed % 6 == 0:
        gpu = [way for way in WAYS if way.startswith("gpu")]
        chosen.append(gpu[int(rng.integers(len(gpu)))])
    return chosen


def digests(seeds: range, count: int) -> list[str]:
    """The hash of one way of each seed."""
    return [digest(random_case(seed), ways_of(seed, count)[seed % (count + 1)]) for seed in seeds]


def digests_with(hash_seed: int, seeds: range, count: int) -> list[str]:
    """The same from a process that orders sets in another way."""
    command = [sys.executable, __file__, "--seeds", f"{seeds.start}:{seeds.stop}:{seeds.step}"]
    run = subprocess.run(
        [*command, "--ways", str(count), "--digests"],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.split()


def parsed(text: str) -> range:
    """`N` is the seeds below it, `A:B` those from A on, `A:B:S` each S-th of them."""
    parts = [int(part) for part in text.split(":")]
    return range(*parts)


def main() -> int:
    """1 if a network fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=parsed, default=range(300), metavar="N|A:B", help=parsed.__doc__)
    parser.add_argument("--ways", type=int, default=3, help="ways of compiling each, besides the default")
    parser.add_argument("--only", default="", help="only the ways whose names begin so")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="where failing models go")
    parser.add_argument("--keep-size", action="store_true", help="do not make failing models smaller")
    parser.add_argument("--interpret", action="store_true", help="interpret programs, generate no code")
    parser.add_argument(
        "--digests", action="store_true", help="print a hash of each lowered program, and stop"
    )
    options = parser.parse_args()
    if options.digests:
        print(*digests(options.seeds, options.ways), sep="\n")
        return 0
    end = time.monotonic() + options.seconds
    total, kinds, count = Outcome(), Counter[str](), 0
    for seed in options.seeds:
        if time.monotonic() > end:
            break
        if count % 25 == 0:
            print(f"-- {count} networks, {sum(total.checks.values())} compilations right", flush=True)
        count += 1
        case = random_case(seed)
        outcome = isolated(case, ways_of(seed, options.ways, options.only), generate=not options.interpret)
        total.checks += outcome.checks
        total.refusals += outcome.refusals
        for way, (kind, text) in outcome.failures.items():
            kinds[kind] += 1
            lines = text.strip().splitlines()
            fact = next((line for line in lines if line.startswith("Max absolute")), lines[-1])[:200]
            print(f"seed {seed}, {way}: {kind}: {fact}", flush=True)
            if kinds[kind] <= 2:
                small = case if options.keep_size else shrunk(case, way, kind)
                path = options.folder / f"{seed}-{way}"
                store(small, path, way, text)
                nodes = " ".join(n.op_type for n in small.model.graph.node)
                print(f"  {path}.onnx: {len(small.model.graph.node)} nodes: {nodes}"[:300], flush=True)
    if not options.only:
        repeated = options.seeds[:count:4]
        first, second = (digests_with(hash_seed, repeated, options.ways) for hash_seed in (1, 2))
        for seed, a, b in zip(repeated, first, second, strict=True):
            if a != b:
                kinds["another program for another PYTHONHASHSEED"] += 1
                print(f"seed {seed}: another program for another PYTHONHASHSEED")
    print(f"{count} networks, {sum(total.checks.values())} compilations right: {dict(total.checks)}")
    for reason, times in total.refusals.most_common():
        print(f"refused {times} times: {reason}")
    for kind, times in kinds.most_common():
        print(f"failed {times} times: {kind}")
    return int(bool(kinds))


if __name__ == "__main__":
    sys.exit(main())
