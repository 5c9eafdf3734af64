"""Whether a model with a quantised KV cache still chooses the tokens that it chose, and finds what was said long ago.

Chapter 8's kit for weights, for caches: the same texts, figures and criteria; and questions about something that is
told at the beginning of a long text. The results file (`--output`) holds, beside schema, chapter and provenance:

    judged          false if no judgement was possible: then `passed` is false, `reason` says why, and that is all
    passed          whether the cache that was asked about has no `complaints`, which are sentences
    criteria        chapter 8's; recall: the least share of the answers that the reference finds
    model           name, layers; bf16_bytes: of a token in a cache that is not quantised
    texts           as chapter 8's
    needles         asked: questions; context: [shortest, longest] prompt in tokens; reference: answers it finds
    rounding        the model in bf16 beside the fp32 reference: the noise that is there without any quantisation
    caches          one for each cache, the judged one first: name, format, values, group, scales, hadamard, bytes (of
                    a token, all layers), judged, passed, complaints, and for the judged one `flipped` places

Each of the last two has chapter 8's figures, and `recall`: found (of the answers that the reference finds), lost (the
questions). Two runs of one command on one machine differ in provenance only.
"""
