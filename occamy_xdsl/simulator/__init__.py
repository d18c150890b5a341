"""
A simulator of CUDA for programs that this compiler makes: it runs them on a machine without a GPU.

The libraries are stubs whose functions enter Python. Device memory has addresses that are mapped nowhere and
remembers who wrote each byte; the work of streams waits until somebody synchronises; cuDNN and cuBLAS are
numpy; generated kernels run in an interpreter of PTX. It proves the order of calls, their arguments, the
lifetimes of what they use, the memory plan and the logic of kernels. It says nothing about speed, about the
numerics of NVIDIA's libraries, or about what they would refuse beyond their documentation.
"""

from occamy_xdsl.simulator.faults import SimulationError, Violation
from occamy_xdsl.simulator.report import KernelReport, Report
from occamy_xdsl.simulator.simulator import Simulator

__all__ = ["KernelReport", "Report", "SimulationError", "Simulator", "Violation"]
