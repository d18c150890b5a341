"""The faults of kernels."""


class PtxError(Exception):
    """A fault of a kernel or of its launch."""

    def __init__(self, kernel: str, message: str, where: str = ""):
        super().__init__(f"kernel '{kernel}'{where}: {message}")
        self.kernel = kernel
        self.message = message


class AccessError(Exception):
    """An access that is not allowed, by the position among the accessing threads of one that is at fault."""

    def __init__(self, message: str, position: int = 0):
        super().__init__(message)
        self.position = position
