"""The ladder to a step that the host has no part in.

Each file has a class `Decoding(start: StartingBatch)` with three methods: `begin()` draws the first token of each row,
`step()` enqueues one greedy step of all rows, `tokens()` waits and returns what each row has got, the first token too.
"""
