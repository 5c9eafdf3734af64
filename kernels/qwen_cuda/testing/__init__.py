"""What the tests of all kernels share: a chapter writes each promise once, and it is checked wherever kernels run.

    def test_accuracy(backend):                                   # on reference, cpu, sim and cuda
        x = backend.place(rows_of_numbers((3, 1024), torch.bfloat16, seed=1), row_padding=8, offset=1)
        out = backend.op("rms_norm")(x.tensor, weight, 1e-6)      # its memory holds NaN before
        assert_within_ulp(out, oracle("rms_norm", x.tensor, weight, 1e-6))
        x.check_untouched()                                       # neither x nor the bytes around it have changed

`backends` and `fixtures` give a test its backends, `guards` its buffers, `numbers` and `strategies` its inputs,
`references` the truth in float64, `ulp` the comparison. `mutants` proves that the checks notice faults, `exercise`
finds the learner's file, `benchmarks` tests what measures, `workers` says how many processes run it all. The package
itself imports nothing: `fixtures` is loaded for suites without kernels too.
"""
