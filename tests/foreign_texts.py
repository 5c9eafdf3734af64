"""Texts that no story holds, and that the tiny checkpoint's tokenizer must give back all the same."""

FOREIGN = (
    "plain words",
    "naïve café",
    "你好，世界",
    "🙂🚀 👩‍👩‍👧",
    "def f(x):\n\treturn 42  # ½",
    "\u0000\ufffd",
    " \n\n  end ",
)
