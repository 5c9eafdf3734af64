"""`python -m chapters.ch08_w8a16_head.quality_gate`."""

import os
import sys

if __name__ == "__main__":
    # Threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from chapters.ch08_w8a16_head.quality_gate.command import main

    sys.exit(main())
