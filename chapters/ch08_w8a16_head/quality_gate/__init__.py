"""`make quality-gate`: whether a model with int8 weights still chooses the tokens that it chose before.

The results file (`--output`) holds, beside schema, chapter and provenance as all of docs/results do:

    judged          false if no judgement was possible: then `passed` is false, `reason` says why, and that is all
    passed          whether there are no `complaints`, which are sentences
    criteria        the least agreement, the largest margin of a flip, the least number of texts and of tokens in each
    model           name, layers
    texts           file, digest (equal digests are equal texts), count, context and judged tokens of each
    rounding        the model in bf16 beside the fp32 reference: the noise that is there without any quantisation
    quantized       the model that is judged: layers, bits, group (null: per channel), bf16_bytes and bytes of its
                    weights, weight_error (rms of the change over rms of the weights), `flipped` places and figures
                    `by_text`
    variants        other groups, for comparison

Each of the last three has, and each text too: tokens, flips, agreement with its 95 % agreement_interval, logit_error
and kl_nats (mean and max), perplexity (reference, model, and the relative change). Two runs of one command on one
machine differ in provenance only.
"""
