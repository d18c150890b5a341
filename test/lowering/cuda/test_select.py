"""What ops become on a GPU, step by step."""

import numpy as np
import pytest
from xdsl.dialects.builtin import f32
from xdsl.utils.test_value import create_ssa_value

from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda.select import select
from occamy_xdsl.lowering.cuda.steps import Launch


@pytest.mark.parametrize(
    ("shape", "order", "dim", "rows"),
    [
        ((1, 3, 9, 4), (0, 1, 2, 3), 2, 8),
        ((1, 3, 9, 4), (0, 1, 2, 3), 2, 5),
        ((1, 3, 9, 4), (0, 2, 3, 1), 2, 7),
        ((2, 3, 9, 4), (0, 2, 3, 1), 2, 6),
        ((7, 5), (0, 1), 0, 6),
        ((7, 5), (0, 1), 1, 4),
        ((2, 7, 5), (0, 1, 2), 1, 3),  # no row moves over another
    ],
)
def test_rows_move_over_each_other_in_turns(
    shape: tuple[int, ...], order: tuple[int, ...], dim: int, rows: int
):
    """No copy writes what it reads, in whatever order it does; together they move the last rows to the front."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= shape[d]
    part = tuple(rows if d == dim else size for d, size in enumerate(shape))
    whole = create_ssa_value(dnn.buffer_type(shape, f32, strides))
    source, target = (
        dnn.ViewOp(whole, row * strides[dim], dnn.buffer_type(part, f32, strides)).view
        for row in (shape[dim] - rows, 0)
    )
    memory = np.arange(step)
    view = np.lib.stride_tricks.as_strided(memory, shape, [8 * stride for stride in strides])
    want = view.copy()
    want.swapaxes(0, dim)[:rows] = view.swapaxes(0, dim)[-rows:].copy()

    steps = select(dnn.CopyOp.between(source, target)).steps
    assert len(steps) == -(-rows // (shape[dim] - rows))
    for launch in steps:
        assert isinstance(launch, Launch)
        read, written = (
            _elements(operand.buffer, operand.offset + operand.place.owner.offset.value.data)
            for operand in launch.operands
        )
        assert not set(read) & set(written)
        memory[written] = memory[read]
    np.testing.assert_array_equal(view, want)


def _elements(buffer: Buffer, start: int) -> list[int]:
    return [start + int(np.dot(point, buffer.strides)) for point in np.ndindex(*buffer.shape)]
