"""The passes of the project, and the standard pipelines as text: one for each target and memory mode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, cast, get_args

from xdsl.passes import ModulePass

from occamy_xdsl.errors import UsageError

Memory = Literal["pool", "lazy", "eager"]
Optimize = Literal["memory", "balanced", "speed"]

MEMORY_MODES: tuple[str, ...] = get_args(Memory)
OPTIMIZE_MODES: tuple[str, ...] = get_args(Optimize)

PASSES: dict[str, tuple[str, ...]] = {
    "occamy_xdsl.transforms": (
        "convert-onnx-to-dnn",
        "dnn-assign-layouts",
        "dnn-coalesce-tensors",
        "dnn-convert-to-pool",
        "dnn-fuse-layers",
        "dnn-insert-memory-ops",
        "dnn-schedule",
        "onnx-infer-shapes",
        "verify-dnn-pool",
    ),
    "occamy_xdsl.lowering.cpu": (
        "convert-dnn-to-cpu",
        "cpu-assign-workspaces",
        "cpu-insert-clock",
    ),
    "occamy_xdsl.lowering.cuda": (
        "convert-dnn-to-cuda",
        "cuda-assign-workspaces",
    ),
}
"""Every pass, by the package that holds it. Pass `a-b` is the class `ABPass` in the file `a_b.py` there."""


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Every pass by name, imported when it is first needed."""

    def loader(package: str, name: str) -> Callable[[], type[ModulePass]]:
        def load() -> type[ModulePass]:
            module = import_module(f"{package}.{name.replace('-', '_')}")
            cls = "".join(word.capitalize() for word in name.split("-")) + "Pass"
            return cast(type[ModulePass], getattr(module, cls))

        return load

    return {name: loader(package, name) for package, names in PASSES.items() for name in names}


@dataclass(frozen=True)
class Options:
    """What a compilation may be asked for. The defaults are those of the command line."""

    target: str = "cpu"
    """`cpu`, or `cpu:NAME` with a processor that LLVM knows; `cuda`, or `cuda:sm_XX` with an architecture."""
    memory: Memory = "pool"
    planner: str = "search"
    optimize: Optimize = "balanced"
    fuse: bool = True
    reuse: bool = True
    """Whether buffers whose lives do not overlap may share memory."""
    in_place: bool = True
    """Whether a result may take the place of an operand that dies."""
    reorder: bool = True
    """Whether ops may run in another order than the file's."""
    memory_limit: int | None = None
    """Bytes that the pool may have at most."""
    workspace_limit: int | None = None
    """Bytes that the scratch buffer of one kernel may have at most."""
    profile: bool = False
    """Whether runs note the time of each kernel call, in an additional output."""

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be honoured, rather than ignore it."""
        # Importing LLVM and the planners takes longer than most commands of occamy-opt.
        from occamy_xdsl.lowering.toolchain import Isa
        from occamy_xdsl.planning.planners import PLANNERS

        kind, colon, processor = self.target.partition(":")
        if kind not in ("cpu", "cuda") or (colon and not processor):
            raise UsageError(f"target '{self.target}': expected cpu, cpu:PROCESSOR, cuda or cuda:sm_XX")
        if kind == "cuda":
            self._check_cuda()
        elif self.processor != "host":
            try:
                Isa.parse(self.processor)
            except ValueError as error:
                raise UsageError(f"target '{self.target}': {error}") from None
        for name, value, known in (
            ("memory", self.memory, MEMORY_MODES),
            ("planner", self.planner, tuple(PLANNERS)),
            ("optimize", self.optimize, OPTIMIZE_MODES),
        ):
            if value not in known:
                raise UsageError(f"{name} '{value}': expected one of {', '.join(known)}")
        if self.optimize != "balanced":
            raise UsageError(f"optimize '{self.optimize}': not available yet, only balanced")
        if self.memory != "pool" and (self.planner, self.reuse, self.in_place) != ("search", True, True):
            raise UsageError(
                f"memory '{self.memory}': planner, reuse and in-place results are of memory 'pool' only"
            )

    def _check_cuda(self) -> None:
        from occamy_xdsl.lowering.cuda.ptx import CHIPS

        if self.processor not in CHIPS:
            known = " ".join(CHIPS)
            raise UsageError(
                f"target '{self.target}': unknown architecture '{self.processor}', known are: {known}"
            )
        if self.memory != "pool":
            raise UsageError(f"memory '{self.memory}': target '{self.target}' has memory 'pool' only")
        if self.profile:
            raise UsageError(f"profile: not available for target '{self.target}'")

    @property
    def is_cuda(self) -> bool:
        """Whether the target is a GPU."""
        return self.target.partition(":")[0] == "cuda"

    @property
    def processor(self) -> str:
        """
        The processor's name, as LLVM knows it; `host` for the machine that compiles.

        PTX for one architecture runs on all later ones, so a GPU of no name is the oldest that CUDA 13 has.
        """
        return self.target.partition(":")[2] or ("sm_75" if self.is_cuda else "host")


@dataclass(frozen=True)
class Stage:
    """A named part of the pipeline; the name is what `--emit` and `Executable.ir` call its result."""

    name: str
    passes: Sequence[str]

    @property
    def pipeline(self) -> str:
        """The stage as `occamy-opt -p` takes it."""
        return ",".join(self.passes)


def _spec(name: str, **options: Any) -> str:
    if not options:
        return name
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
    return f"{name}{{{' '.join(f'{k}={v}' for k, v in texts.items())}}}"


def stages(options: Options) -> list[Stage]:
    """The standard pipeline for `options`, in stages: onnx, dnn, mem, mlir."""
    if options.is_cuda:
        # What NVIDIA's libraries take: stored, row-major inputs at multiples of 256 bytes.
        fusion = _spec("dnn-fuse-layers", prologues=False)
        layouts = _spec("dnn-assign-layouts", channels_last=False)
        limit = {} if options.workspace_limit is None else {"limit": options.workspace_limit}
        workspaces = _spec("cuda-assign-workspaces", chip=options.processor, **limit)
        alignment = {"alignment": 256}
        lowering = _spec("convert-dnn-to-cuda", chip=options.processor)
    else:
        fusion, layouts = "dnn-fuse-layers", "dnn-assign-layouts"
        workspaces = _spec("cpu-assign-workspaces", target=options.processor)
        alignment = {}
        lowering = _spec("convert-dnn-to-cpu", target=options.processor)
    memory = list[str]()
    match options.memory:
        case "pool":
            memory += [_spec("dnn-insert-memory-ops", mode="liveness" if options.reuse else "eager")]
            memory += [_spec("dnn-coalesce-tensors", in_place=options.in_place and options.reuse)]
            memory += [workspaces]
            memory += [
                _spec("dnn-convert-to-pool", planner=options.planner, reuse=options.reuse, **alignment)
            ]
            memory += ["verify-dnn-pool"]
        case "eager" | "lazy":
            memory += [_spec("dnn-insert-memory-ops", mode=options.memory)]
            memory += [workspaces]
    return [
        Stage("onnx", ["onnx-infer-shapes"]),
        Stage(
            "dnn",
            [
                "convert-onnx-to-dnn",
                *([fusion] if options.fuse else []),
                "dce",
                layouts,
                *(["dnn-schedule"] if options.reorder else []),
            ],
        ),
        Stage("mem", memory),
        Stage(
            "mlir",
            [
                lowering,
                *(["cpu-insert-clock"] if options.profile else []),
            ],
        ),
    ]


def pipeline_text(options: Options) -> str:
    """The whole pipeline, to be pasted into `occamy-opt -p`."""
    return ",".join(stage.pipeline for stage in stages(options))
