"""The networks with which a real GPU is checked reach every kernel template and every library function."""

import inspect
from collections.abc import Iterator
from typing import get_args

import pytest
from gpu_ops import CASES

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cuda import steps
from occamy_xdsl.lowering.cuda.kernels.spec import GpuKernel
from occamy_xdsl.lowering.cuda.select import select
from occamy_xdsl.pipelines import Options
from occamy_xdsl.simulator import Simulator


def templates(cls: type = GpuKernel) -> Iterator[type]:
    """The classes of kernels that can be made."""
    if not inspect.isabstract(cls):
        yield cls
    for subclass in cls.__subclasses__():
        yield from templates(subclass)


def test_everything_is_reached() -> None:
    reached = set()
    for build in CASES.values():
        compilation = Compilation(Model(build()), Options(target="cuda"))
        compilation.run_to("mem")
        for op in compilation.module.walk():
            if isinstance(op, dnn.KernelOp):
                for step in select(op).steps:
                    reached.add(type(step.kernel) if isinstance(step, steps.Launch) else type(step))
                    if isinstance(step, steps.Convolution):
                        reached.add((step.bias is not None, step.z is not None))
    # Kernels are the templates; the last three are memory, which `--memory eager` and `lazy` use.
    memory = {steps.Allocate, steps.Free, steps.Transfer}
    wanted = {*templates(), *get_args(steps.Step)} - {steps.Launch} - memory
    assert wanted | {(False, False), (True, False), (True, True)} <= reached


@pytest.mark.parametrize("name", ["arg_max", "convolution_residual_relu", "gather"])
def test_right_under_the_simulator(name: str, build) -> None:
    """Some of them; `make gpu-dry-run` runs all."""
    model = build(CASES[name]())
    with Simulator(architecture="sm_75") as simulator:
        model.check(model.run(simulator))
