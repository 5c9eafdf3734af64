"""Plots in which something is lost, hidden, stuck or found."""

from __future__ import annotations

from qwen3_ref.tiny_training.scene import Plot

LOST_AND_FOUND = (
    Plot(
        name="lost",
        about=("about a lost {toy}", "about a {who} who loses a {toy}", "about {n} the {who} and a {tadj} {toy}"),
        plan="{n} is a {who}. {He} loses a {tadj} {toy}. {ff} helps. They find it {hid}.",
        questions=(
            ("What did {n} lose?", "{n} lost a {tadj} {toy}."),
            ("Who helped {n}?", "{ff} helped {n}."),
            ("Where did they find the {toy}?", "They found the {toy} {hid}."),
        ),
        text="""
        @open {trait_told} {n} had a {tadj} {toy}, and {he} loved to {use} it.

        @day {n} took the {toy} and went out to play {place}. @detour [But when {he} looked down,|Then {he} stopped to
        rest. When {he} looked up,] the {toy} was gone! "Where is my {toy}?" {he} cried. {He} looked [here and
        there|left and right|up and down], but {he} could not see it anywhere. @sad

        @meet @why "I lost my {tadj} {toy}," said {n}. "I can not find it." @cheer "[We can look for it together|Four
        eyes see more than two|Let us think. Where did you see it last]."

        So {n} and {f} began to look. First, they looked {place2}. [The {toy} was not there.|There was only an old
        {toy2}.] Then they asked a {beast}. "[I have not seen a {toy} today|I am sorry, but I do not know where it is],"
        said the {beast}. {n} [was tired|wanted to go home|was about to give up], but {f} said, "[Let us try one more
        time|Just one more place]."

        At last, they looked {hid}. There it was! The {tadj} {toy} was [a little wet, but it was not broken|covered with
        leaves, but it was fine|waiting for them]. @glad @thanks

        They [played with the {toy} together|took turns with the {toy}] until the sun went down. After that, {n} always
        [looked after {his} {toy}|knew where {his} {toy} was]. {trait_recalled} @end
        """,
    ),
    Plot(
        name="stuck",
        about=(
            "about a {toy} that gets stuck",
            "about {n} and a {fwho} who can {need}",
            "about a {who}, a {fwho} and a {toy}",
        ),
        plan="{n} is a {who}. The {tadj} {toy} is {where}. {ff} can {need} and gets it back.",
        questions=(
            ("Where was the {toy}?", "The {toy} was {where}."),
            ("Who got the {toy} back?", "{ff} got the {toy} back."),
            ("What is {f} good at?", "{f} can {need} very well."),
        ),
        choices={
            "where,need,how": (
                "up in a tall tree;climb;climbed from branch to branch",
                "in the middle of the pond;swim;jumped into the water and swam",
                "on the roof;fly;flew up to the roof",
                "down in a deep hole;dig;dug and dug with both feet",
                "under a heavy log;lift;lifted the log with one big push",
                "inside a narrow pipe;crawl;crawled into the pipe",
            )
        },
        helper="need",
        text="""
        @open {trait_told} For {his} birthday, {n} got a {tadj} {toy} from {his} {fam}. {He} took it with {him}
        everywhere.

        @day {n} was playing {place}. {He} [ran too fast and fell|threw the {toy} high into the air|turned around and
        around]. Oh no! Now the {toy} was {where}. {n} [tried to get it with a long stick|called for help|stood there
        and did not know what to do], but {he} could not reach it.

        First, a {beast} came by. "[I can not help you|That is too hard for me|I wish I could help]," said the {beast}.
        "[I can not {need}|I never learned to {need}]." And the {beast} went away. @sad

        @meet @why "My {toy} is {where}," said {n}, "and I can not get it back." {f} smiled. "[I am good at this|Wait
        here|I know what to do]," said {f}. "I can {need} very well." {f} {how}. [Soon|In a moment|After a while], {f}
        came back with the {tadj} {toy}.

        @glad @thanks "[It was easy for me|It was fun|You are welcome]," said {f}. "[Everyone can do something well|We
        all need help sometimes]. What can you do?"

        {n} thought about it. "I can tell good stories," {he} said. So {n} told {f} a story about a {col2} {toy2}, and
        {f} [listened to every word|laughed until the end|wanted to hear it again]. @friends {trait_recalled} @end
        """,
    ),
    Plot(
        name="treasure",
        about=("about a treasure", "about {n}, who finds a map", "about a {who} and a treasure map"),
        plan="{n} finds a map {hid}. {n} and {f} follow it. They find a box. In the box, there is a {tadj} {toy}.",
        questions=(
            ("Where did {n} find the map?", "{n} found the map {hid}."),
            ("What was in the box?", "There was a {tadj} {toy} in the box."),
            ("Who went with {n}?", "{ff} went with {n}."),
            ("How many steps did they take?", "They took {num} steps."),
        ),
        text="""
        @open {trait_told}

        @day {n} found an old map {hid}. There was a big {col2} cross on it. "This is a treasure map!" said {n}. {He}
        ran to {f}, a {fadj} {fwho} who lived next door. "[Will you come with me?|Do you want to find a treasure?|Look
        what I found!]" asked {n}. "[Of course I will|Yes, let us go]!" said {f}.

        The map said, "Start {place}." So they went there. @detour Then the map said, "Take {num} steps to the big
        stone." They counted [slowly|out loud|together] and took {num} steps. Behind the stone, there was a small path.

        The path went [over a hill and into a dark wood|along a river and through a field|up and up and up]. [{f} was a
        little scared.|It was a long way.] "[Are we there yet|Should we go back]?" asked {f}. "[We are almost there|Just
        a little more]," said {n}.

        At the end of the path, they saw a cross made of two sticks. They dug with their hands. [Clunk!|Bump!] There was
        a box in the ground. {n} opened it. Inside, there was a {tadj} {toy} and a letter. The letter said, "[The best
        treasure is a good friend|This is for the one who does not give up]."

        {n} looked at {f} and smiled. "[Then I had my treasure all the time|We found it together, so it is for both of
        us]," said {n}. They took the {toy} home and [showed it to everyone|put it where both could see it].
        {trait_recalled} @end
        """,
    ),
    Plot(
        name="took",
        about=("about asking first", "about saying sorry", "about {n}, who takes a {toy}"),
        plan="{f} has a {tadj} {toy}. {n} takes it and does not ask. Then {n} says sorry and gives it back.",
        questions=(
            ("What did {n} take?", "{n} took a {tadj} {toy}."),
            ("Whose {toy} was it?", "It was {f}'s {toy}."),
            ("Where did {n} hide the {toy}?", "{n} hid the {toy} {hid}."),
            ("What did {n} learn?", "{n} learned to ask first."),
        ),
        text="""
        @open {trait_told} {ff} was {his} friend. {f} had a {tadj} {toy}, and {n} thought it was the best {toy} in the
        world.

        @day {n} went to see {f}. {f} was asleep, and the {toy} was on the floor. {n} looked at the {toy}. {He} wanted
        to {use} it so much! "[I will only take it for a day|{f} will not see it]," {he} thought. So {n} took the {toy}
        and ran home. {He} did not ask.

        At first, {n} was happy. {He} could {use} the {toy} all afternoon. But then {he} began to worry. [What if {f}
        came by?|What would {f} say?] {n} hid the {toy} {hid}. After that, it was not fun any more.

        In the evening, {f} came to the door. {fHis} eyes were red. "My {toy} is gone," {fhe} said. "I looked
        everywhere. [Have you seen it|Will you help me look for it]?" {n} felt very bad. {His} [tummy hurt|face was
        hot|heart was heavy].

        "I took it," said {n} in a small voice. "I wanted to {use} it, and I did not ask. I am sorry." {n} went and got
        the {tadj} {toy} and gave it back. {f} was quiet for a moment. Then {fhe} said, "[Thank you for telling me the
        truth|I am glad that you told me]. Next time, just ask me."

        The next day, {n} asked, "May I {use} your {toy}?" "[Yes, you may|Of course]," said {f}, "[and then it is my
        turn|let us do it together]." {n} learned that it is better to ask first. {trait_recalled} @end
        """,
    ),
    Plot(
        name="hide_and_seek",
        about=("about hide and seek", "about a game", "about {n} and {f}, who play a game"),
        plan="{n} and {f} play hide and seek {place}. {n} looks for a long time. {f} is {hid}.",
        questions=(
            ("What game did they play?", "They played hide and seek."),
            ("Where did {f} hide?", "{f} hid {hid}."),
            ("What did {n} hear?", "{n} heard {sound}."),
        ),
        choices={"sound": ("a small laugh", "a loud sneeze", "a quiet song", "a funny noise")},
        text="""
        @open {trait_told} {His} best friend was {f}, a {fadj} {fwho}.

        @day the two friends met {place}. "[What shall we do today|What do you want to play]?" asked {f}. "Let us play
        hide and seek!" said {n}. "You hide, and I will count." {n} closed {his} eyes and counted. "One, two, three,
        four, five, six, seven, eight, nine, ten! [Here I come|Ready or not, here I come]!"

        {n} looked behind a tall tree. There was only a {beast}, asleep in the sun. {n} looked [in a big box|under a
        cart|behind a wall]. There was only an old {toy2}. {n} looked [everywhere|high and low|in every corner], but
        there was no {f}.

        Now {n} began to worry. [It was late, and the sky was grey.|What if {f} was lost?] "{f}, where are you?" {he}
        called. "[I give up|You win|Please come out]!" [Nobody answered.|It was very quiet.]

        Then {n} heard {sound}. It came from a place very near. {n} went closer, step by step, and looked. There was
        {f}, {hid}! "I found you!" said {n}. {f} came out and laughed. "That was a good place to hide," said {n}. "I
        thought I would never find you."

        "Now it is my turn to count," said {f}. They played again and again until it was time to go home.
        {trait_recalled} @end
        """,
    ),
    Plot(
        name="way_home",
        about=("about finding the way home", "about a {who} who gets lost", "about {n}, who is lost {place}"),
        plan="{n} follows a {lure} and gets lost. {ff} helps. They look for {sign}. {n} gets home.",
        questions=(
            ("Why did {n} get lost?", "{n} followed a {lure}."),
            ("Who helped {n}?", "{ff} helped {n}."),
            ("What did {n} remember?", "{n} remembered {sign} near {his} house."),
        ),
        choices={
            "lure": ("{col2} butterfly", "{col2} bird", "big {col2} leaf in the wind", "funny little frog"),
            "sign": ("a tall white church", "an old windmill", "three tall trees", "a bridge of stone", "a red tower"),
        },
        text="""
        @open {trait_told} {His} {fam} always said, "Stay near the house, {n}."

        @day {n} saw a {lure}. It was so pretty! {n} ran after it, over the grass and around a corner and down the hill.
        When {he} stopped, the {lure} was gone. {n} looked around. {He} did not know this place. "[Where am I|Which way
        is my house]?" {n} said. [Nothing looked the same.|There was no house and no road.] @sad

        @meet @why "I am lost," said {n}. "I want to go home to my {fam}." @cheer "Tell me, what can you see near your
        house?"

        @thought "There is {sign} near my house," said {n}. "[Very good|That will help us]!" said {f}. "Let us go up the
        hill. From there, we can see far." So they walked up the hill together. @detour At the top, {f} pointed.
        "[Look|Look over there]! Is that it?" "Yes!" said {n}. "That is {sign}!"

        They went down the other side, and soon {n} could see {his} house. {His} {fam} was standing at the door. "{n}!
        There you are!" said {his} {fam} and [gave {him} a big hug|held {him} tight]. "[I was so worried|I looked for
        you everywhere]."

        "I am sorry," said {n}. "I ran too far. {f} helped me find the way." {His} {fam} thanked {f}, and they all had
        [some {food}|warm milk and some {food}]. After that, {n} stayed near the house. {trait_recalled} @end
        """,
    ),
    Plot(
        name="tooth",
        about=("about a loose tooth", "about {n}, who loses a tooth", "about the tooth fairy"),
        plan="{n} has a loose tooth. It comes out when {n} eats {snack}. {n} puts it under the pillow and gets a coin.",
        questions=(
            ("What was {n} eating when the tooth came out?", "{n} was eating {snack}."),
            ("Where did {n} put the tooth?", "{n} put the tooth under {his} pillow."),
            ("What did {n} find in the morning?", "{n} found a shiny coin."),
        ),
        choices={"snack": ("an apple", "a carrot", "a piece of bread", "a big cookie", "a pear")},
        text="""
        {n} was a {adj} {who} with a loose tooth. {trait_told} Every day, {n} pushed the tooth with {his} tongue. It
        went this way and that way, but it did not come out.

        "When will it come out?" {n} asked {his} {fam}. "[You have to wait|It will come out when it is ready|Do not pull
        it]," said {his} {fam}. {n} did not like to wait. {His} friend {ff} said, "[Does it hurt|Are you scared]?" "A
        little," said {n}.

        @day {n} was sitting {place} and eating {snack}. Crunch! Something small and hard was in {his} mouth. {n} took
        it out and looked at it. It was the tooth! "{f}, look!" {he} cried. "My tooth came out!" {f} looked at the hole.
        "[You look funny|Now you are big]," said {f}, and they both laughed.

        Then {n} dropped the tooth in the grass. "Oh no!" said {n}. They looked [for a long time|on their hands and
        knees|between the flowers]. At last, {f} saw something white under a leaf. "Here it is!" said {f}. @thanks

        That night, {n} put the tooth under {his} pillow and [closed {his} eyes|went to sleep]. In the morning, the
        tooth was gone. In its place, there was a shiny coin! @glad {n} put the coin in a {col2} box and kept it for a
        long time. @end
        """,
    ),
)
