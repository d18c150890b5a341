"""Models on a GPU that has the host's memory: what is not copied, and that the results are the same."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from nets import NETS

from occamy_xdsl.runtime.executable import Executable, LibraryModel, aligned_bytes
from occamy_xdsl.simulator import Simulator

CHIP = "sm_75"
READ_ONLY = 8
"""cudaHostRegisterReadOnly."""


@pytest.fixture(scope="module")
def model(build):
    return build(NETS["resnet"](), weights="file")


@pytest.fixture(scope="module")
def discrete(model) -> dict[str, np.ndarray]:
    """What a GPU with a memory of its own computes."""
    with Simulator(architecture=CHIP) as simulator:
        outputs = model.run(simulator)
    model.check(outputs)
    return outputs


def arrays(model, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The input, and a place for the output, `shift` bytes after a multiple of 256."""
    (x,), (y,) = model.inputs.values(), model.expected.values()
    source, target = (
        aligned_bytes(a.nbytes + shift, 256)[shift:].view(np.float32).reshape(a.shape) for a in (x, y)
    )
    source[...] = x
    return source, target


def sizes(model) -> tuple[int, int]:
    """Bytes of input and output, and of the weights."""
    return model.compilation.report().io_bytes, model.compilation.signature().weights_bytes


@pytest.mark.parametrize("name", ["resnet", "aliases", "attention", "preactivation", "kept"])
@pytest.mark.parametrize("weights", ["embed", "file"])
def test_all_memory_is_shared(name: str, weights: str, build) -> None:
    """Nothing is copied, on the device there are the pool and the copies that a graph would need."""
    model = build(NETS[name](), weights=weights)
    with Simulator(architecture=CHIP) as simulator:
        expected = model.run(simulator)
    with Simulator(architecture=CHIP, integrated=True, pageable=True) as simulator:
        outputs = model.run(simulator, times=2)
    for key, want in expected.items():
        np.testing.assert_array_equal(outputs[key], want)
    report, plan = simulator.report(), model.compilation.report()
    assert report.copied_bytes == {}
    assert report.allocations == 1
    assert plan.pool_bytes <= report.peak_device_bytes <= plan.pool_bytes + plan.io_bytes + 256 * 8


def test_unregistered_inputs_are_copied(model, discrete) -> None:
    """Where the device reaches only what is registered the weights are, but not what the caller has."""
    with Simulator(architecture=CHIP, integrated=True) as simulator:
        outputs = model.run(simulator)
    np.testing.assert_array_equal(next(iter(outputs.values())), next(iter(discrete.values())))
    report, (io_bytes, weights_bytes) = simulator.report(), sizes(model)
    assert sum(report.copied_bytes.values()) == sum(
        a.nbytes for a in (*model.inputs.values(), *outputs.values())
    )
    assert report.allocations == 1
    assert report.calls["cudaHostRegister"] == report.calls["cudaHostUnregister"] == 1
    assert report.peak_device_bytes <= model.compilation.report().pool_bytes + io_bytes + 256 * 4
    assert weights_bytes > 10_000


@pytest.fixture
def registered(model) -> Iterator[tuple[Simulator, np.ndarray, np.ndarray]]:
    """A simulator with the caller's arrays registered, the input as read-only."""
    with Simulator(architecture=CHIP, integrated=True) as simulator:
        source, target = arrays(model)
        for array, flags in ((source, READ_ONLY), (target, 0)):
            assert simulator.call("cudaHostRegister", array.ctypes.data, array.nbytes, flags) == 0
        yield simulator, source, target
        for array in (source, target):
            assert simulator.call("cudaHostUnregister", array.ctypes.data) == 0


def test_registered_inputs_are_read_in_place(model, discrete, registered) -> None:
    simulator, source, target = registered
    call = LibraryModel(model.library).bind(0)
    for _ in range(2):
        target.fill(np.nan)
        call([source.ctypes.data], [target.ctypes.data])
        np.testing.assert_array_equal(target, next(iter(discrete.values())))
    del call
    assert simulator.report().copied_bytes == {}


def test_a_graph_has_memory_of_its_own(model, discrete, registered) -> None:
    """It is launched on the addresses it was made with, which are none of the caller's."""
    simulator, source, target = registered
    bound = LibraryModel(model.library).bind(0)
    bound([source.ctypes.data], [target.ctypes.data])
    bound.capture()
    other = np.zeros_like(target)
    bound([source.ctypes.data], [other.ctypes.data])
    target.fill(0)
    bound([source.ctypes.data], [other.ctypes.data])
    np.testing.assert_array_equal(other, next(iter(discrete.values())))
    assert not target.any()
    del bound
    assert sum(simulator.report().copied_bytes.values()) == 2 * (source.nbytes + target.nbytes)


def test_half_registered_memory_is_copied(model, discrete) -> None:
    with Simulator(architecture=CHIP, integrated=True) as simulator:
        source, target = arrays(model)
        assert simulator.call("cudaHostRegister", source.ctypes.data, source.nbytes // 2, 0) == 0
        call = LibraryModel(model.library).bind(0)
        call([source.ctypes.data], [target.ctypes.data])
        del call
        simulator.call("cudaHostUnregister", source.ctypes.data)
    np.testing.assert_array_equal(target, next(iter(discrete.values())))
    assert simulator.report().copied_bytes["host to device"] == source.nbytes


def test_misaligned_memory_is_copied(model, discrete) -> None:
    """Kernels load vectors from inputs; the memory of outputs may be lent to other buffers."""
    source, target = arrays(model, shift=4)
    with Simulator(architecture=CHIP, integrated=True, pageable=True) as simulator:
        call = LibraryModel(model.library).bind(0)
        call([source.ctypes.data], [target.ctypes.data])
        del call
    np.testing.assert_array_equal(target, next(iter(discrete.values())))
    assert sum(simulator.report().copied_bytes.values()) == source.nbytes + target.nbytes


def test_weights_that_the_driver_does_not_map_are_copied(model, discrete) -> None:
    with Simulator(architecture=CHIP, integrated=True) as simulator:
        model.run(simulator)
    number = simulator.calls.index("cudaHostRegister") + 1
    with Simulator(architecture=CHIP, integrated=True, fail=(number, 801)) as simulator:
        outputs = model.run(simulator)
    np.testing.assert_array_equal(next(iter(outputs.values())), next(iter(discrete.values())))
    assert simulator.report().copied_bytes["host to device"] > sizes(model)[1]
    assert "cudaHostUnregister" not in simulator.calls


def test_a_pool_of_the_caller(model, discrete) -> None:
    with Simulator(architecture=CHIP, integrated=True, pageable=True) as simulator:
        pool = ctypes.c_void_p()
        simulator.call("cudaMalloc", ctypes.byref(pool), model.compilation.report().pool_bytes)
        source, target = arrays(model)
        call = LibraryModel(model.library).bind(pool.value or 0)
        call([source.ctypes.data], [target.ctypes.data])
        del call
        simulator.call("cudaFree", pool)
    np.testing.assert_array_equal(target, next(iter(discrete.values())))


def test_inputs_stay_as_they_are(model) -> None:
    source, target = arrays(model)
    before = source.copy()
    with Simulator(architecture=CHIP, integrated=True, pageable=True):
        call = LibraryModel(model.library).bind(0)
        call([source.ctypes.data], [target.ctypes.data])
        del call
    np.testing.assert_array_equal(source, before)


def test_jetsons_are_integrated(build) -> None:
    model = build(NETS["resnet"](), target="cuda:sm_87")
    with Simulator(architecture="sm_87") as simulator:
        model.check(model.run(simulator))
    assert simulator.report().copied_bytes["host to device"] == model.inputs["x"].nbytes


def test_enqueue_writes_to_the_arrays_of_the_last_run(build) -> None:
    """They are kept by the executable."""
    model = build(NETS["resnet"]())
    with Simulator(architecture=CHIP, integrated=True, pageable=True) as simulator:
        executable = Executable(LibraryModel(model.library))
        outputs = executable.run(model.inputs)
        results = dict(outputs)
        for array in results.values():
            array.fill(np.nan)
        executable.bound.enqueue()
        simulator.call("cudaStreamSynchronize", executable.bound.stream)
        model.check(results)
        del executable, outputs


def test_unregistered_memory_is_a_fault_of_the_program() -> None:
    with Simulator(architecture=CHIP, integrated=True, strict=False) as simulator:
        runtime = simulator.call
        pointer = np.zeros(64, np.float32)
        device = ctypes.c_void_p()
        runtime("cudaMalloc", ctypes.byref(device), 256)
        runtime("cudaMemcpyAsync", device, pointer.ctypes.data, 256, 3, None)
        assert runtime("cudaStreamSynchronize", None) == 700
        runtime("cudaFree", device)
    assert "memory of the host that is not registered" in str(simulator.violations[0])
