"""`python -m qwen_cuda.doctor`: what works on this machine, and how to mend what does not.

`probes` ask the machine, `checks` judge the answers (pure functions, one per row), `report` prints them.
Standard library only, in syntax that Python 3.9 reads: the doctor is for machines on which things are missing.
"""
