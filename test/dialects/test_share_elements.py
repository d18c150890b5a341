"""`share_elements` against the sets of all elements."""

import numpy as np

from occamy_xdsl.dialects.dnn.base import share_elements


def test_against_sets():
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(3000):
        rank = int(rng.integers(0, 5))
        shape = rng.integers(0 if rng.random() < 0.1 else 1, 5, rank)
        strides = rng.integers(-9, 30, rank)
        elements = {int(np.dot(point, strides)) for point in np.ndindex(*shape)}
        distance = int(rng.integers(-40, 41))
        answers.append(bool(elements & {e + distance for e in elements}))
        assert share_elements(shape.tolist(), strides.tolist(), distance) == answers[-1]
    assert 500 < sum(answers) < 2500
