"""The attributes of a module that has been lowered, which say what an artefact needs to know of it."""

WEIGHTS = "occamy.weights"
"""What the weights blob holds, as dictionaries of `value` and `offset` (bytes)."""

WEIGHTS_BYTES = "occamy.weights_bytes"
"""Size of the weights blob."""

POOL_BYTES = "occamy.pool_bytes"
"""Size of the pool."""

MODEL_BYTES = "occamy.model_bytes"
"""For a GPU: bytes of a model handle."""

CALLS = "occamy.calls"
"""Of a profile for a GPU: node and kernel of each step that is timed."""
