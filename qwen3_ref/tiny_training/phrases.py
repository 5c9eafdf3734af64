"""Phrases that all plots share, written with the grammar's signs (see `grammar`)."""

from __future__ import annotations

PHRASES = {
    "open": """[Once upon a time, there was a {adj} {who} named {n}.|Once there was a {adj} {who} named {n}.|There once
        was a {adj} {who} named {n}.|Long ago, there was a {adj} {who} named {n}.|{n} was a {adj} {who}.|{Home}, there
        lived a {adj} {who} named {n}.|Far away, behind the hills, there lived a {adj} {who} named {n}.|This is the
        story of a {adj} {who} named {n}.|{n} and {his} {fam} lived {home}. {n} was a {adj} {who}.|Do you know the story
        of {n}, the {adj} {who}?|Once, {home}, there lived a {adj} {who} named {n}.|There was a {who} named {n}. {n} was
        very {adj}.]""",
    "day": "[One day,|One morning,|One {w} day,|One {w} morning,|One afternoon,|On a {w} day,]",
    "glad": """[{n} was very happy.|{n} was so happy.|{n} smiled.|{n} jumped for joy.|{n} felt happy.|{n} laughed and
        clapped.|{n} felt warm and happy inside.]""",
    "sad": """[{n} was very sad.|{n} was sad.|{n} started to cry.|{n} felt sad.|{n} sat down and cried.|A tear ran
        down {n}'s face.]""",
    "proud": "[{n} was very proud.|{n} felt proud and happy.|{n} stood up tall and smiled.]",
    "thanks": """["Thank you, {f}!" said {n}.|"Thank you so much!" said {n}.|{n} said thank you and gave {f} a big
        hug.|{n} hugged {f} and said, "You are a good friend."]""",
    "friends": """[{n} and {f} were good friends [from that day on|after that].|From that day on, {n} and {f} were
        best friends.|After that, {n} and {f} played together every day.|{n} and {f} were friends for ever.]""",
    "meet": """[Just then, a {fadj} {fwho} named {f} came by.|Then a {fadj} {fwho} named {f} came along.|A {fadj}
        {fwho} named {f} saw {him} and came over.]""",
    "why": """["Why are you sad?" asked {f}.|"What is wrong?" asked {f}.|"Can I help you?" asked {f}.|"What happened?"
        {f} wanted to know.]""",
    "cheer": """["Do not worry," said {f}.|"Do not cry," said {f}.|"Do not give up," said {f}.|"Let me help you," said
        {f}.]""",
    "thought": "[{n} thought for a long time.|{n} sat down to think.|{n} thought and thought.|{n} took a deep breath.]",
    "detour": """[|||On the way, {he} saw a {beast} by the road. "Good morning," said the {beast}. "Good morning,"
        said {n}. |A {col2} butterfly flew by, and {n} watched it for a moment.|The sun was high in the sky, and the
        birds were singing.|{He} passed a small shop and a tall church, and then a field full of {col2} flowers.|The
        wind was soft, and the leaves made a quiet sound.|An old {beast} looked up as {he} went by, but it did not say
        anything.]""",
    "end": """[It was a good day.|{n} went to bed with a big smile.|That night, {n} slept very well.|It was the best
        day ever.|The end.|They all lived happily ever after.||]""",
}
