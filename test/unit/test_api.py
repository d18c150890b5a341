"""The public Python API."""

import ctypes
import os
import pickle
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import occamy_xdsl as oc


def make_model(batch: int | str = 2) -> onnx.ModelProto:
    """y = relu(x), z = x + x; x is batch x 5."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu"), helper.make_node("Add", ["x", "x"], ["z"], "add")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 5]) for name in ("y", "z")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


X = np.random.default_rng(1).standard_normal((2, 5), np.float32)
Y, Z = ReferenceEvaluator(make_model()).run(None, {"x": X})


@pytest.fixture(scope="module")
def executable() -> oc.CompiledExecutable:
    return oc.compile(make_model())


def test_import_is_quick_and_lazy():
    """Importing the package loads nothing heavy; every public name is there."""
    code = (
        "import sys, time; start = time.process_time(); import occamy_xdsl as oc\n"
        "assert time.process_time() - start < 0.1\n"
        "assert not {'numpy', 'onnx', 'xdsl', 'llvmlite'} & set(sys.modules), sys.modules\n"
        "names = {name: getattr(oc, name) for name in oc.__all__}\n"
        "assert set(names) <= set(dir(oc)) and names['backend'].OccamyBackend\n"
        "assert oc.open is not open and oc.compile is not compile\n"
    )
    root = Path(oc.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def test_a_report_loads_nothing_that_generates_code(tmp_path: Path):
    """That takes as long as the report of a small model."""
    onnx.save(make_model(), tmp_path / "m.onnx")
    code = (
        "import sys; from occamy_xdsl.tools.occamy import main\n"
        f"assert main(['report', {str(tmp_path / 'm.onnx')!r}]) == 0\n"
        "heavy = ('xdsl.dialects.llvm', 'xdsl.dialects.gpu', 'occamy_xdsl.lowering.cuda', 'occamy_xdsl.simulator',\n"
        "    'occamy_xdsl.lowering.cpu.emit')\n"
        "assert not set(heavy) & set(sys.modules), set(heavy) & set(sys.modules)\n"
    )
    root = Path(oc.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=300)


def test_a_pipe_is_no_model(tmp_path: Path):
    """A model is read more than once; nobody writes to this pipe, so that opening it would never end."""
    pipe = tmp_path / "m.onnx"
    os.mkfifo(pipe)
    with pytest.raises(oc.InvalidInputError, match="a pipe or device"):
        oc.load(pipe)
    with pytest.raises(oc.UsageError, match="cannot be loaded: not a file"):
        oc.open(pipe)


def test_unknown_name():
    with pytest.raises(AttributeError, match="nothing"):
        _ = oc.nothing


@pytest.mark.parametrize("form", ["path", "text", "bytes", "proto", "model"])
def test_compile_takes(tmp_path, form):
    path = tmp_path / "m.onnx"
    onnx.save(make_model(), path)
    model = {
        "path": path,
        "text": str(path),
        "bytes": path.read_bytes(),
        "proto": make_model(),
        "model": oc.load(path),
    }[form]
    np.testing.assert_array_equal(oc.compile(model).run({"x": X})["y"], Y)


def test_run(executable):
    for outputs in (executable.run({"x": X}), executable(x=X), executable.run(X), executable(X)):
        assert list(outputs) == ["y", "z"]
        np.testing.assert_array_equal(outputs["y"], Y)
        np.testing.assert_array_equal(outputs["z"], Z)


def test_dlpack(executable):
    class Foreign:
        def __dlpack__(self, **options):
            return X.__dlpack__(**options)

        def __dlpack_device__(self):
            return X.__dlpack_device__()

    np.testing.assert_array_equal(executable(x=Foreign())["y"], Y)


def test_save_and_open(executable, tmp_path):
    executable.save(tmp_path / "m.so")
    opened = oc.open(tmp_path / "m.so")
    assert opened.pool_bytes == executable.pool_bytes
    np.testing.assert_array_equal(opened.run({"x": X})["z"], Z)


def test_ir(executable):
    marks = {"onnx": "onnx.Relu", "dnn": "dnn.elementwise", "mem": "dnn.kind", "llvm": "define void"}
    for stage, mark in marks.items():
        assert mark in executable.ir(stage)


def test_shapes_and_dims():
    model = make_model("N")
    for bound in (oc.load(model, dims={"N": 2}), oc.load(model, shapes={"x": (2, 5)})):
        np.testing.assert_array_equal(oc.compile(bound).run({"x": X})["y"], Y)
    with pytest.raises(oc.InvalidInputError, match="'x' is Nx5"):
        oc.compile(model)


def test_names_beyond_ascii(tmp_path):
    """Inputs, outputs and dimensions keep their names, in memory and in a library."""
    model = make_model("größe")
    for old, new in {"x": "bild/ß 日本", "y": "π", "z": "🙂"}.items():
        for value in (*model.graph.input, *model.graph.output):
            value.name = value.name.replace(old, new)
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
    with pytest.raises(oc.InvalidInputError, match="'bild/ß 日本' is größex5: give --dim größe=N"):
        oc.compile(model)
    compiled = oc.compile(oc.load(model, dims={"größe": 2}))
    compiled.save(tmp_path / "m.so")
    for executable in (compiled, oc.open(tmp_path / "m.so")):
        outputs = executable.run({"bild/ß 日本": X})
        assert list(outputs) == ["π", "🙂"]
        np.testing.assert_array_equal(outputs["π"], Y)
        np.testing.assert_array_equal(outputs["🙂"], Z)


def test_memory_report(tmp_path):
    model = oc.load(make_model())
    report = model.memory_report(target="cpu")
    assert isinstance(report, oc.MemoryReport)
    assert report.io_bytes == 3 * 2 * 5 * 4
    assert oc.MemoryReport.from_json(report.to_json()) == report
    page = report.to_html(tmp_path / "m.html")
    assert (tmp_path / "m.html").read_text() == page
    assert report._repr_html_() in page
    assert report.pool_bytes == oc.compile(model).memory_report().pool_bytes


@pytest.mark.parametrize("shape", ["1x3", (1.0, 3), (None,), [[1, 3]]])
def test_sizes_are_integers(shape):
    with pytest.raises(oc.InvalidInputError, match="'x': sizes are integers"):
        oc.load(make_model(), shapes={"x": shape})
    with pytest.raises(oc.InvalidInputError, match="'N': sizes are integers"):
        oc.load(make_model(), dims={"N": shape})


def test_stages_have_names():
    compiled = oc.compile(make_model())
    with pytest.raises(oc.UsageError, match="'foo' is no stage, the stages are: onnx, dnn, mem, mlir, llvm"):
        compiled.ir("foo")
    with pytest.raises(oc.UsageError, match="stripe_budget '5%': expected a percentage"):
        oc.compile(make_model(), stripe_budget="5%")


WRONG_KINDS = [
    ("target memory planner optimize", [None, 5, ["cpu"]]),
    ("memory_limit workspace_limit", ["64MiB", 1.5, True]),
    ("stripe_budget recompute_budget", ["5%", 1j, True, [5]]),
    ("fuse reuse in_place reorder profile", ["no", None, 0]),
    ("threads", ["1", None, 1.0, True]),
    ("tuning tuning_device", [5]),
]

KINDS = [
    lambda: oc.load(None),
    lambda: oc.load(5),
    lambda: oc.load([make_model()]),
    lambda: oc.load(make_model().graph),
    lambda: oc.load(make_model("N"), shapes=[("x", (2, 5))]),
    lambda: oc.load(make_model("N"), shapes=(2, 5)),
    lambda: oc.load(make_model("N"), shapes={"x": 5}),
    lambda: oc.load(make_model("N"), shapes={0: (2, 5)}),
    lambda: oc.load(make_model("N"), dims=2),
    lambda: oc.load(make_model("N"), dims={0: 2}),
    lambda: oc.compile(None),
    lambda: oc.compile(make_model(), stripes=5),
    lambda: oc.compile(make_model(), memory_limits=5),
    lambda: oc.compile(make_model(), inplace=True),
    *(
        lambda name=name, value=value: oc.compile(make_model(), **{name: value})
        for names, values in WRONG_KINDS
        for name in names.split()
        for value in values
    ),
    lambda: oc.load(make_model()).memory_report(stripes=5),
    lambda: oc.load(make_model()).memory_report(target=None),
    lambda: oc.compile(make_model()).run(X, out=[np.zeros((2, 5), np.float32)]),
    lambda: oc.compile(make_model()).run(X, out=5),
]


@pytest.mark.parametrize("call", KINDS, ids=[str(i) for i in range(len(KINDS))])
def test_arguments_of_a_wrong_kind(call):
    """An OccamyError like all others, and the TypeError that Python programs expect, in one line."""
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, oc.ArgumentTypeError)
    assert isinstance(caught.value, oc.OccamyError)
    assert len(str(caught.value).splitlines()) == 1


def test_a_misspelt_option_is_named_with_the_right_one():
    with pytest.raises(TypeError, match=r"compile\(\) got .* 'memory_limits', did you mean 'memory_limit'\?"):
        oc.compile(make_model(), memory_limits=5)
    with pytest.raises(TypeError, match=r"memory_report\(\) got .* 'xyz', the options are: target, memory, "):
        oc.load(make_model()).memory_report(xyz=5)


INPUTS = [
    (None, "expected float32"),
    (5, "expected float32"),
    ("text", "expected float32"),
    ([[1.0, 2.0], [3.0]], "not readable as an array"),
    (X.astype(np.float64), "got float64"),
    (X[:1], r"got float32\[1,5\]"),
    (X[None], r"got float32\[1,2,5\]"),
    (X.astype(">f4"), "byte-swapped"),
    (object(), "expected float32"),
    ({"X": X}, "no input is named 'X'"),
    ({"x": X, "y": X}, "no input is named 'y'"),
    ({0: X}, "no input is named '0'"),
    ({}, "input 'x' .* is missing"),
    ({"x": None}, "expected float32"),
]


@pytest.mark.parametrize(("value", "fact"), INPUTS, ids=[str(i) for i in range(len(INPUTS))])
def test_inputs_that_do_not_fit(executable, value, fact):
    with pytest.raises(oc.InvalidInputError, match=fact):
        executable.run(value)


def test_as_many_inputs_as_there_are(executable):
    for inputs in ((), (X, X)):
        with pytest.raises(oc.InvalidInputError, match=f"expected 1 inputs .x., got {len(inputs)}"):
            executable.run(*inputs)
    with pytest.raises(oc.InvalidInputError, match="all inputs by position or all by name"):
        executable(X, x=X)


OUTPUTS = [
    ({"x": X}, "no output is named 'x'"),
    ({"y": X.tolist()}, "expected a numpy array, got list"),
    ({"y": X[:1].copy()}, r"expected float32\[2,5\], got float32\[1,5\]"),
    ({"y": np.zeros((2, 5))}, "got float64"),
    ({"y": np.zeros((5, 2), np.float32).T}, "contiguous"),
    ({"y": np.broadcast_to(np.float32(0), (2, 5))}, "contiguous"),
]


@pytest.mark.parametrize(("out", "fact"), OUTPUTS, ids=[str(i) for i in range(len(OUTPUTS))])
def test_outputs_that_do_not_fit(executable, out, fact):
    with pytest.raises(oc.InvalidInputError, match=fact):
        executable.run(X, out=out)


def test_other_spellings_of_a_value(tmp_path):
    """Numbers of numpy, paths and buffers of any kind mean what they say."""
    model = make_model("N")
    data = model.SerializeToString()
    for form in (bytearray(data), memoryview(data), data):
        loaded = oc.load(form, dims={"N": np.int64(2)})
        compiled = oc.compile(loaded, memory_limit=np.int32(10_000), stripe_budget=np.float32(0))
        np.testing.assert_array_equal(compiled(x=X)["y"], Y)
    changed = bytearray(data)
    loaded = oc.load(changed, shapes={"x": np.array([2, 5])})
    changed[:] = bytes(len(changed))
    np.testing.assert_array_equal(oc.compile(loaded)(x=X)["y"], Y)
    for path in ("a\0b", tmp_path / "a\0b"):
        with pytest.raises(oc.InvalidInputError, match="null"):
            oc.load(path)


def test_errors_survive_a_process(tmp_path):
    """As concurrent.futures and multiprocessing hand them on."""
    raised = list[oc.OccamyError]()
    for call in (
        lambda: oc.load(b"no model"),
        lambda: oc.load(tmp_path / "missing"),
        lambda: oc.compile(make_model(), planner="magic"),
        lambda: oc.compile(make_model(), target=5),
    ):
        with pytest.raises(oc.OccamyError) as caught:
            call()
        raised.append(caught.value)
    raised.append(oc.MemoryLimitError(5, 4, "n", [("t", 5)], "hint", what="workspace"))
    raised.append(oc.UnsupportedModelError(nodes=[("n", "Op", "why")], file="m.onnx"))
    for error in raised:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_errors(tmp_path):
    errors = (oc.UnsupportedModelError, oc.MemoryLimitError, oc.InvalidInputError, oc.UsageError)
    assert all(issubclass(error, oc.OccamyError) for error in errors)
    with pytest.raises(oc.InvalidInputError, match=r"missing\.onnx"):
        oc.load(tmp_path / "missing.onnx")
    with pytest.raises(oc.UnsupportedModelError):
        oc.load(b"no model")
    for options in ({"target": "gpu"}, {"memory": "heap"}, {"planner": "magic"}, {"threads": 2}):
        with pytest.raises(oc.UsageError, match=str(next(iter(options.values())))):
            oc.compile(make_model(), **options)
    with pytest.raises(oc.UsageError, match="cannot be loaded"):
        oc.open(tmp_path / "missing.so")


def test_a_gpu_that_is_not_there():
    """One line that says what is missing, and exit code 3."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has NVIDIA's driver")
    with pytest.raises(oc.NoDeviceError) as caught:
        oc.compile(make_model(), target="cuda")
    assert str(caught.value).startswith("no GPU can be used here: ")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 3


def test_unsupported_nodes_are_listed():
    proto = make_model()
    proto.graph.node.append(helper.make_node("NonZero", ["x"], ["n"], "nonzero"))
    proto.graph.output.append(helper.make_tensor_value_info("n", TensorProto.INT64, [2, None]))
    with pytest.raises(oc.UnsupportedModelError) as caught:
        oc.compile(proto)
    ((name, operator, reason),) = caught.value.nodes
    assert (name, operator) == ("nonzero", "NonZero")
    assert reason


def test_memory_limit():
    nodes = [helper.make_node("Softmax", ["x"], ["a"], "first"), helper.make_node("Softmax", ["a"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 100])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 100])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    needed = oc.compile(proto, in_place=False).pool_bytes
    if needed == 0:
        pytest.skip("the intermediate value is in the caller's output")
    with pytest.raises(oc.MemoryLimitError) as caught:
        oc.compile(proto, in_place=False, memory_limit=needed - 1)
    assert (caught.value.needed, caught.value.limit) == (needed, needed - 1)
    assert caught.value.largest_tensors
    assert oc.compile(proto, in_place=False, memory_limit=needed).pool_bytes == needed


# --- ONNX's backend interface -----------------------------------------------------------------------------


def test_backend_runs_models():
    backend = oc.backend.OccamyBackend
    outputs = backend.run_model(make_model(), [X])
    np.testing.assert_array_equal(outputs[0], Y)
    np.testing.assert_array_equal(outputs.z, Z)
    np.testing.assert_array_equal(backend.prepare(make_model()).run({"x": X})[0], Y)


def test_backend_compiles_for_the_shapes_that_come():
    prepared = oc.backend.OccamyBackend.prepare(make_model("N"))
    for batch in (2, 3, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 5), np.float32)
        np.testing.assert_array_equal(prepared.run([x])[1], x + x)


def test_backend_runs_nodes():
    node = helper.make_node("Sub", ["a", "b"], ["c"])
    (c,) = oc.backend.OccamyBackend.run_node(node, [np.float32([5, 7]), np.float32([2])], opset_version=14)
    np.testing.assert_array_equal(c, np.float32([3, 5]))


def test_backend_knows_its_limits():
    backend = oc.backend.OccamyBackend
    assert [backend.supports_device(d) for d in ("CPU", "CPU:0", "CUDA", "TPU")] == [True, True, False, False]
    proto = make_model()
    assert backend.is_compatible(proto)
    assert backend.is_compatible(make_model("N"))
    proto.graph.node[0].op_type = "NonZero"
    assert not backend.is_compatible(proto)
    with pytest.raises(SkipTest):
        backend.prepare(proto)
    with pytest.raises(oc.UsageError, match="CUDA"):
        backend.prepare(make_model(), "CUDA")


@pytest.mark.parametrize("limit", ["64MiB", -1, 1.5])
def test_limits_are_whole_bytes(limit: object):
    with pytest.raises(oc.UsageError, match="whole number of bytes"):
        oc.compile(make_model(), memory_limit=limit)
