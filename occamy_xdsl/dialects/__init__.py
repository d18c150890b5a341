"""The dialects of the project; `get_all_dialects` is the one place where they are listed."""

from collections.abc import Callable

from xdsl.ir import Dialect


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Every dialect by name, imported when it is first needed."""

    def get_dnn() -> Dialect:
        from occamy_xdsl.dialects.dnn import Dnn

        return Dnn

    def get_onnx() -> Dialect:
        from occamy_xdsl.dialects.onnx import Onnx

        return Onnx

    def get_weights() -> Dialect:
        from occamy_xdsl.dialects.weights import WeightsDialect

        return WeightsDialect

    return {"dnn": get_dnn, "onnx": get_onnx, "weights": get_weights}
