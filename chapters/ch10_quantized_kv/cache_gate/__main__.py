"""`python -m chapters.ch10_quantized_kv.cache_gate`."""

import os
import sys

if __name__ == "__main__":
    # Threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from chapters.ch10_quantized_kv.cache_gate.command import main

    sys.exit(main())
