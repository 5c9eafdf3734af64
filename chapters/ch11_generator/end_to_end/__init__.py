"""Whole requests, ours beside everybody else's: who takes part, whether the tokens are right, and how long they took.

`make bench-e2e` runs it. A contender gets a prompt of token ids and gives greedy ones: loading and tokenisation are not
part of a request. One stopwatch holds for all of them.
"""
