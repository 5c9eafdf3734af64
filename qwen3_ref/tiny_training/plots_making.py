"""Plots in which something is made, carried, bought or mended."""

from __future__ import annotations

from qwen3_ref.tiny_training.scene import Plot

MAKING = (
    Plot(
        name="cook",
        about=("about cooking", "about making {dish}", "about {n}, who wants to make {dish}"),
        plan="{n} wants to make {dish}. There is no {missing}. {ff} has some. They eat together.",
        questions=(
            ("What did {n} want to make?", "{n} wanted to make {dish}."),
            ("What was missing?", "There was no {missing}."),
            ("Who had some {missing}?", "{ff} had some {missing}."),
        ),
        choices={
            "dish,missing": (
                "a cake;sugar",
                "an apple pie;butter",
                "a big pot of soup;salt",
                "a loaf of bread;flour",
                "a chocolate pudding;milk",
                "a plum pie;flour",
                "a birthday cake;cream",
                "a carrot cake;honey",
                "a cheese pizza;cheese",
            )
        },
        text="""
        @open {trait_told} {n} liked to cook with {his} {fam}.

        @day they wanted to make {dish}. They washed their hands and got out a big {col2} bowl. [{n} put on a tall white
        hat.|{n} read the recipe out loud.] "First, we need some {missing}," said {his} {fam}. {n} looked on the shelf
        and under the table, but there was no {missing} in the house! "Oh no," said {n}. "We can not make {dish} without
        it."

        "[Go and ask our neighbors|Maybe a neighbor has some]," said {his} {fam}. So {n} took a small cup and went out.
        First, {he} asked a {beast}. "I am sorry," said the {beast}. "I have {fruit}, but I have no {missing}." @detour

        Then {n} came to the house of {ff}. Knock, knock! "Do you have some {missing}?" asked {n}. "[Yes, I have a
        lot|Yes, here you are]," said {f}, and filled the cup. "What are you making?" "We are making {dish}," said {n}.
        "[Would you like to help?|Come with me, and you can have the first piece!]" {f} was very happy to come.

        They mixed and stirred and tasted. {f} got some of it on {fhis} nose, and everyone laughed. Then they had to
        wait. The whole house smelled so good that the {beast} came to the door. "[Please let me in|It smells so good],"
        said the {beast}. "I brought some {fruit}."

        At last, {dish} stood on the table. They all sat down to eat. "[Yum|This is so good]!" said {f}. {n} learned
        that food tastes best when you share it. {trait_recalled} @end
        """,
    ),
    Plot(
        name="build",
        about=("about building a {b}", "about {n}, who builds a {b}", "about working together"),
        plan="{n} builds a {b} {place}. It falls down because of {down}. {f} helps. They build it again.",
        questions=(
            ("What did {n} build?", "{n} built a {b}."),
            ("Why did it fall down?", "It fell down because of {down}."),
            ("Who helped {n}?", "{ff} helped {n}."),
            ("What did they put on top?", "They put a {col2} flag on top."),
        ),
        choices={
            "b": ("tower", "little house", "raft", "bridge", "fort", "tree house", "windmill"),
            "down": ("a strong wind", "a big wave", "the heavy rain", "a big dog", "a loose stone"),
        },
        text="""
        @open {trait_told} {n} liked to build things.

        @day {n} went out to build a {b} {place}. {He} worked all alone from morning to noon. It was the biggest {b}
        that {he} had ever made. "[Look at my {b}|I made this all by myself]!" {he} called. But nobody was there to see
        it.

        Then it happened. First, there was a small crack. Then, because of {down}, the whole {b} fell down. In a moment,
        all the work was gone. @sad "I will never build anything again," said {n}.

        @meet @why "My {b} fell down," said {n}. {f} looked at it from all sides. "[It was a good {b}|I like your {b}],"
        said {f}, "but it was not strong enough at the bottom. [Let us build it again|We can build a new one together].
        Two can do more than one." {n} dried {his} eyes. "[All right|Yes, let us try]," said {n}.

        They got [wood and rope|big stones and long sticks|{num} boxes and some nails]. {n} held the parts, and {f} tied
        them together. They [sang while they worked|talked about many things]. "[Is it straight|Is this right]?" asked
        {n}. "[A little more to the left|Just right]," said {f}. They worked until the evening.

        The new {b} was even bigger, and it was strong. They put a {col2} flag on top. The wind blew, and the rain fell,
        but it did not move. "[We did it|We are a good team]!" said {f}. @glad @friends {trait_recalled} @end
        """,
    ),
    Plot(
        name="basket",
        about=("about some {fruit}", "about a heavy basket", "about {n}, who gets {fruit}"),
        plan="{n} gets {fruit} for {his} {fam}. The basket is too heavy. {ff} helps to carry it.",
        questions=(
            ("What was in the basket?", "There were {fruit} in the basket."),
            ("Who helped to carry the basket?", "{ff} helped to carry it."),
            ("What did they eat for dinner?", "They ate some {food}."),
        ),
        text="""
        @open {trait_told} "We need some {fruit}," said {his} {fam}. "[Can you get them|Will you go and find some]?"
        "Yes, I can do that," said {n}.

        {n} took a big {col2} basket and went out. "Be home before dark," called {his} {fam}. {n} walked {place}.
        @detour First, {he} found {num} {fruit}, and then some more, and then more and more. {n} did not stop until the
        basket was full to the top.

        Then {n} wanted to go home. But the basket was too heavy! {n} pulled, and {n} pushed. The basket did not move.
        [{n} tried with one hand and then with both.|{n} tried to roll it.] A {beast} came by. "[Take some of them
        out|Leave the basket here]," said the {beast}. But {n} did not want to do that.

        @meet "[That is a big basket|That looks heavy]," said {f}. "Do you need help?" "Yes, please," said {n}. {f} took
        one side, and {n} took the other side. "One, two, three, up!" they said. It worked!

        They walked side by side. [They sang so that the way was not so long.|{f} told funny stories all the way.] When
        they were tired, they sat on a wall, and each of them ate one of the {fruit}. Just before dark, they were at the
        house. "So many {fruit}!" said {his} {fam}. "How did you carry them?" "{f} helped me," said {n}.

        "Thank you, {f}," said {his} {fam}. "Please stay for dinner." They all ate some {food}, and {n} gave {f} a bag
        of {fruit} to take home. {trait_recalled} @end
        """,
    ),
    Plot(
        name="market",
        about=(
            "about a day at the market",
            "about {n}, who has {num} coins",
            "about a {who} who is kind at the market",
        ),
        plan="{n} has {num} coins. {He} wants a {tadj} {toy}. {f} has nothing to eat. {n} buys {food} for {f}.",
        questions=(
            ("How many coins did {n} have?", "{n} had {num} coins."),
            ("What did {n} want to buy?", "{n} wanted to buy a {tadj} {toy}."),
            ("What did {n} buy?", "{n} bought some {food}."),
        ),
        text="""
        @open {trait_told} {n} had saved {num} coins. {He} kept them in a small {col2} bag.

        @day {n} went to the market with {his} {fam}. There was so much to see! There were {fruit} in big boxes, and
        there was a man who sold a {beast}. Then {n} saw it: a {tadj} {toy}. "How much is the {toy}?" asked {n}. "It
        costs {num} coins," said the woman. {n} was so happy. {He} had just enough!

        {n} opened the little bag. Then {he} saw {f}, a {fadj} {fwho}, on the steps of a house. {f} looked at the food,
        but {fhe} did not buy anything. "[Are you hungry|Why do you not eat]?" asked {n}. "I am very hungry," said {f},
        "but I have lost my money. [There was a hole in my pocket|I can not find it]."

        {n} looked at the {toy}, and then {he} looked at {f}. @thought It was not easy. Then {n} went to the baker and
        bought some {food} with all {his} coins. "This is for you," said {n}. {f} [could not believe it|smiled from ear
        to ear]. "[You are so kind|Thank you]! Let us share it," said {f}. They sat on the steps and ate the {food}
        together.

        When it was time to go, the woman with the {toy} called {n}. "I saw what you did," she said. "You have a good
        heart. [Take the {toy}|The {toy} is yours]. It is a gift from me." {n} did not know what to say. "Thank you!"
        {he} said at last.

        {n} ran back to {f} and showed {fhim} the {tadj} {toy}. "Now we can share this, too," said {n}. @friends
        {trait_recalled} @end
        """,
    ),
    Plot(
        name="repair",
        about=("about a broken {toy}", "about mending things", "about {n}, who mends a {toy}"),
        plan="The {tadj} {toy} of {n} is broken. {ff} has {tool}. They mend it together.",
        questions=(
            ("What was broken?", "The {tadj} {toy} was broken."),
            ("What did they use to mend it?", "They used {tool}."),
            ("Who had {tool}?", "{ff} had {tool}."),
            ("Who gave {n} the {toy}?", "{His} {fam} gave {n} the {toy}."),
        ),
        choices={
            "tool": ("a pot of glue", "a needle and thread", "a small hammer", "some strong tape", "a piece of wire")
        },
        text="""
        @open {trait_told} {n} had a {tadj} {toy} that {his} {fam} had given {him}. It was very dear to {him}.

        @day {n} wanted to {use} the {toy}, but when {he} took it out, the {toy} was broken! {n} [held the two parts in
        {his} hands|picked up the parts one by one]. @sad "[You can get a new one|It is only a {toy}]," said a {beast}.
        "I do not want a new one," said {n}. "I want this one. It is from my {fam}."

        {n} put the parts into a {col2} bag and went to look for help. {He} went to the shop, but it was closed. {He}
        asked {place}, but nobody knew how to mend a {toy}. @detour

        @meet @why {n} opened the {col2} bag. "My {toy} is broken," {he} said. {f} looked at it. "[It does not look so
        bad|I have seen worse]," said {f}. "At home, I have {tool}. Come with me. I will show you what to do, and you
        will do it."

        {f} had a small table full of funny things. There was {tool}, just as {f} had said. "[Hold this part|Now be very
        careful]," said {f}. {n} held {his} breath. Piece by piece, they put the {toy} together. It took {num} hours.
        "[Now we have to wait|Do not touch it yet]," said {f}, and they drank some tea.

        Then it was done. The {toy} was whole again. There was one thin line, but that made it even more special.
        @thanks From that day on, {n} did not throw things away. {He} mended them, and {he} mended them for others, too.
        {trait_recalled} @end
        """,
    ),
)
