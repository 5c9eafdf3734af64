"""The CUDA simulator, as a learner sees it: how kernels run there, and a record of what their threads do.

    library = Library("sim", (Path("kernels/cuda/rms_norm.cu"),), variant="checked")
    with simulator.trace(library) as trace:
        torch.ops.qwen_sim.rms_norm(x, weight, 1e-6)
    print(trace.summary())                                       # requests, sectors, bytes and conflicts of each line
    print(trace.timeline(block=0, warp=0))                       # what one warp did, step by step
    simulator.access_pattern(trace.where(target="x")[0])         # a picture, in a notebook

`options` sets the order of threads, the OS threads and the time limit of launches.
"""

from qwen_cuda.simulator.access_pattern import AccessPattern, access_pattern
from qwen_cuda.simulator.bank_map import BankMap, bank_map
from qwen_cuda.simulator.options import options
from qwen_cuda.simulator.requests import Meeting, Request, Transactions
from qwen_cuda.simulator.timeline import Timeline
from qwen_cuda.simulator.trace import Trace, trace

__all__ = [
    "AccessPattern",
    "BankMap",
    "Meeting",
    "Request",
    "Timeline",
    "Trace",
    "Transactions",
    "access_pattern",
    "bank_map",
    "options",
    "trace",
]
