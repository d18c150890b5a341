"""Profiles of models for a GPU: what is timed. How long it takes the simulator does not know."""

import pytest
from nets import NETS

from occamy_xdsl.compiler import ELAPSED, call_times
from occamy_xdsl.errors import OccamyError
from occamy_xdsl.runtime.executable import Executable, LibraryModel
from occamy_xdsl.simulator import Simulator

CHIP = "sm_75"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet", {}),
        ("attention", {}),
        ("aliases", {"memory": "lazy"}),
        ("sequences", {"stream_weights": True, "weights": "file"}),
    ],
)
def test_each_step_is_between_two_events(name: str, options: dict, build) -> None:
    """The order of events and calls on the stream is that of the listed kernels; results are those without."""
    plain, timed = build(NETS[name](), **options), build(NETS[name](), profile=True, **options)
    with Simulator(architecture=CHIP) as simulator:
        executable = Executable(LibraryModel(timed.library))
        executable.run(timed.inputs)
        before = len(simulator.calls)
        outputs = executable.run(timed.inputs)
        run = simulator.calls[before:]
        with pytest.raises(OccamyError, match="profiles cannot be in a CUDA graph"):
            executable.capture()
        del executable
    times = call_times(outputs)
    calls = timed.compilation.kernels()
    assert times.shape == (len(calls),)
    assert not times.any(), "the simulator measures no time"
    del outputs[ELAPSED]
    plain.check(outputs)
    # What only moves memory is no node of the model, and has the name of its op.
    nodes = {node for node, _ in calls if not node.startswith("dnn.")}
    assert nodes <= {node.name for node in NETS[name]().graph.node}
    # One event before each step, and one after the last; what streams weights has two more for each op.
    events = run.count("cudaEventRecord")
    assert events == len(calls) + 1 or options.get("stream_weights")
    launched = [kernel if kernel.startswith(("cudnn", "cublas")) else None for _, kernel in calls]
    assert [c for c in run if c.startswith(("cudnnConv", "cudnnPool", "cudnnSoft", "cublasSgemm"))] == [
        c for c in launched if c
    ]
    assert run.count("cudaEventElapsedTime") == len(calls)


def test_every_call_of_a_profile_may_fail(build) -> None:
    model = build(NETS["kept"](), profile=True)
    with Simulator(architecture=CHIP) as simulator:
        model.run(simulator)
    calls = list(simulator.calls)
    with Simulator(architecture=CHIP, strict=False) as simulator:
        for number, call in enumerate(calls, 1):
            if call.startswith("cudaEvent") and call != "cudaEventDestroy":
                simulator.fail_call(number, 719)
                with pytest.raises(OccamyError, match=f"{call}: cudaErrorLaunchFailure"):
                    model.run(simulator)
                assert simulator.leaks() == [], call
    assert simulator.violations == []
