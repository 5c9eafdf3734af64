"""Looks for bad English in what the grammar writes. Used by the tests; it knows the mistakes a grammar makes."""

from __future__ import annotations

import re

_SPEECH = r"(?:said|asked|cried|called|shouted|thought|went|wrote|they|everyone|he|she|it|[A-Z]\w+)\b"
_FAULTS = {
    "a sign of the grammar is left": r"[@\[\]{}|]",
    "two spaces": r" {2}",
    "a space before a punctuation mark": r" [.,!?;:](?!\.)",
    "no space after a punctuation mark": r"[a-z][.,!?;][A-Za-z]",
    "a doubled word": r"\b(?!that\b|had\b|boom\b|squeak\b|tweet\b|toot\b|ooh\b|look\b|help\b|more\b)(\w+) \1\b",
    "a doubled punctuation mark": r"[,;?!.]{2}",
    "'a' before a vowel": r"\b[Aa] (?!uni|use|one\b|euro)[aeiou]",
    "'an' before a consonant": r"\b[Aa]n (?![aeiouAEIO8]|hour|honest)",
    "'an' before a consonant's sound": r"\b[Aa]n (?:uni|use|one\b|euro)",
    "a small letter after a full stop": r"[a-z]\.\"? [a-z]",
    "a small letter at the start": r"\A[a-z]|\n[a-z]",
    "a small letter after a question that is no speech tag": rf"[!?]\" (?!{_SPEECH})[a-z]",
    "a plural with 'was'": r"\b[Tt]hey (?:was|is|has)\b",
    "a singular with 'were'": r"\b(?:[Hh]e|[Ss]he|[Ii]t) (?:were|are|have)\b",
    "an article before a pronoun": r"\b(?:a|an|the) (?:his|her|their|my|your|a|an|the|some)\b",
    "a question without a question mark": r"\"(?:What|Where|Who|Why|Which|How|Is|Are|Does|May) [^\"?!.,]*[.,]\"",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in _FAULTS.items()}


def faults(text: str) -> list[str]:
    """What is wrong with `text`: one line a fault, with the place; empty when nothing was found."""
    found = []
    for name, pattern in _COMPILED.items():
        for match in pattern.finditer(text):
            found.append(f"{name}: …{text[max(0, match.start() - 30) : match.end() + 30]}…")
    if text.count('"') % 2:
        found.append(f"a quote that does not end: {text[:60]}…")
    return found
