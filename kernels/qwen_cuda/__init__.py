"""The fast side of the tutorial: builds and loads the CUDA kernels and gives them Python functions.

Importing the package loads nothing but itself, so that `python -m qwen_cuda.doctor` runs where PyTorch is missing.
"""
