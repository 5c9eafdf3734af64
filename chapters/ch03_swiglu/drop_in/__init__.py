"""`make drop-in`: our operators in an unmodified model of transformers, held against it and timed beside it."""
