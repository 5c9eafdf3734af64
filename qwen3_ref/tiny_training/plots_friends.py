"""Plots about friends: sharing, helping, meeting, giving."""

from __future__ import annotations

from qwen3_ref.tiny_training.scene import Plot

FRIENDS = (
    Plot(
        name="share",
        about=("about sharing", "about two friends and a {toy}", "about {n} and {f}, who learn to share"),
        plan="{n} and {f} find a {tadj} {toy} {place}. They both want it. It falls down. They learn to share.",
        questions=(
            ("What did they find?", "They found a {tadj} {toy}."),
            ("Where did they find it?", "They found it {place}."),
            ("What did they learn?", "They learned to share."),
        ),
        text="""
        @open {trait_told} {n} had a friend named {f}. {f} was a {fadj} {fwho}.

        @day the two friends went for a walk {place}. @detour Suddenly, they both stopped. There in front of them was a
        {tadj} {toy}! "[I want it|It is mine|I saw it first]!" said {n}. "No, [it is mine|I saw it first|I want it]!"
        said {f}.

        {n} pulled on one side, and {f} pulled on the other side. [They were both angry.|They both began to shout.] Then
        the {toy} fell down on the ground with a bump. It was very quiet. "[Is it broken|Oh no, is it broken]?" asked
        {f}. {n} picked it up and looked. "No," said {n}, "but it has a little mark."

        @thought "I am sorry," said {n}. "We can share it. [You can have it first|You take it today, and I take it
        tomorrow]." {f} looked up and smiled. "[That is a good idea|Thank you, {n}]," said {f}. "I am sorry, too. [Let
        us take turns|It will be our {toy}]."

        First, {f} got to {use} the {toy}, and {n} watched and clapped. Then it was {n}'s turn. [It was more fun with
        two.|They laughed all afternoon.] When a {beast} came by and asked, "May I try?" they both said, "Yes, of
        course!"

        They learned that it is good to share. @friends {trait_recalled} @end
        """,
    ),
    Plot(
        name="new_friend",
        about=("about making a friend", "about a shy {who}", "about how {n} met {f}"),
        plan="{n} is new and has no friends. {ff} has a {tadj} {toy}. They play. They become friends.",
        questions=(
            ("What was {f} playing with?", "{f} was playing with a {tadj} {toy}."),
            ("Where did they meet?", "They met {place}."),
            ("How did {n} feel at the end?", "{n} was not lonely any more."),
            ("What did they eat?", "They ate some {food}."),
        ),
        text="""
        There was once a shy {who} named {n}. {trait_told} {n} was new in town, and {he} did not know anyone. Every day,
        {he} sat at the window and watched the others play. {n} felt lonely.

        "[Go out and play|Go outside, the sun is shining]," said {his} {fam}. "[I am too shy|I do not know what to
        say]," said {n}. "Just say hello," said {his} {fam}. "The rest is easy."

        @day {n} went out {place}. There {he} saw {f}, a {fadj} {fwho}. {f} was playing with a {tadj} {toy}. {n} wanted
        to play, too, but {he} [stood behind a tree|looked at {his} feet|did not say a word].

        {f} saw {him} and waved. "[Hello|Hi]! My name is {f}. What is your name?" {n} took a deep breath. "[I am|My name
        is] {n}," {he} said in a small voice. "[I have not seen you here before|You are new here], {n}," said {f}. "[Do
        you want to {use} my {toy}|Do you want to try my {toy}]?" {n} smiled. "Yes, please!"

        They played [until it was dark|all afternoon|until the stars came out]. {n} told a joke about a {beast}, and {f}
        laughed and laughed. Then they sat down and ate some {food}. "[Will you come back tomorrow|Shall we meet again
        tomorrow]?" asked {f}. "Yes," said {n}. "I will bring my {toy2}."

        On the way home, {n} [danced and sang|jumped over every stone]. "I have a friend," {he} told {his} {fam}.
        "{fHis} name is {f}." {n} was not lonely any more. {trait_recalled} @end
        """,
    ),
    Plot(
        name="rescue",
        about=("about being kind", "about a {fwho} who needs help", "about {n}, who helps a {fwho}"),
        plan="{n} finds {ff}, who {trouble}. {n} helps. Later, {f} helps {n}, too.",
        questions=(
            ("Who needed help?", "{ff} needed help."),
            ("What was wrong with {f}?", "{f} {trouble}."),
            ("What did {n} lose later?", "{n} lost {his} {toy}."),
        ),
        choices={
            "trouble,mend": (
                "was stuck in the mud;took {fhim} by the hand and pulled and pulled",
                "had a hurt leg;put a soft cloth around the leg",
                "was very cold;put a warm blanket around {fhim}",
                "had fallen into a hole;let down a long rope",
                "was very hungry;gave {fhim} some bread and some {fruit}",
                "was caught in a net;cut the net with a small knife",
                "had a thorn in {fhis} foot;took the thorn out with great care",
            )
        },
        text="""
        @open {trait_told} [{n} was always kind to others.|{n} liked to help, and everyone knew it.]

        @day {n} was walking {place}. @detour Then {he} heard a small voice. "[Help! Help!|Please help me!|Is anyone
        there?]" {n} looked around. Behind a bush, {he} saw a {fwho} named {f}. {f} {trouble}.

        "[Do not worry|Do not be afraid|Stay still], I will help you," said {n}. {He} {mend}. [It took a long time.|It
        was hard work.] "[There you go|All is well now]," said {n}. {f} [smiled a little smile|dried {fhis} tears].
        "Thank you," said {f}. "[I will not forget this|You are very kind]. What is your name?" "My name is {n}," said
        {n}.

        {n} gave {f} some water, and they talked for a while. {f} lived {home2} and had {num} brothers. Then {f} had to
        go home. "[Goodbye, {n}|See you again, {n}]!" said {f}.

        Some days later, {n} was {place} again. This time, {n} was the one who needed help. {He} had lost {his} {toy},
        and it was getting dark. [{n} did not know where to look.|{n} sat on a stone and did not know what to do.] Then
        {he} heard a voice that {he} knew. "[Is that you, {n}?|Hello, {n}!]" It was {f}!

        "You helped me, and now I will help you," said {f}. {f} [called all {fhis} brothers|looked and looked], and soon
        they found the {toy} {hid}. @glad When you are kind, others are kind to you. @friends {trait_recalled} @end
        """,
    ),
    Plot(
        name="race",
        about=("about a race", "about {n} and {f}, who have a race", "about a fast {who} and a slow {fwho}"),
        plan="{n} is fast. {f} is slow. They race from {start} to {goal}. {n} stops to rest. {f} wins.",
        questions=(
            ("Who won the race?", "{f} won the race."),
            ("Why did {n} lose?", "{n} stopped to rest and fell asleep."),
            ("Where did the race end?", "The race ended at {goal}."),
            ("What did the winner get?", "The winner got a {tadj} {toy}."),
        ),
        choices={
            "start,goal": (
                "the old oak;the river",
                "the school;the white bridge",
                "the big rock;the village gate",
                "the red barn;the top of the hill",
                "the well;the castle wall",
            )
        },
        text="""
        @open {trait_told} {n} could run very fast, and {he} told everyone about it. "I am the fastest of all!" {he}
        said, again and again.

        {ff} was slow, but {fhe} never gave up. @day {f} said, "Let us have a race, you and I." {n} laughed and laughed.
        "[You can not win|You are too slow|That will be easy]," said {n}. "[We will see|Let us find out]," said {f}.

        They would run from {start} to {goal}. All their friends came to see it. The winner would get a {tadj} {toy}.
        "One, two, three, go!" called a {beast}. {n} ran as fast as the wind. Soon {he} was far ahead, and {f} was only
        a small dot behind {him}.

        "[I have so much time|I can take a little rest|I do not have to hurry]," thought {n}. {He} sat down under a tree
        and ate some {fruit}. The sun was warm. {His} eyes closed, and soon {n} was asleep.

        {f} walked on, step by step. {fHe} [was tired, but {fhe} did not stop|did not stop to eat or rest]. {fHe} passed
        the tree where {n} was sleeping. {fHe} could see {goal} in front of {fhim}. When {n} woke up, everyone was
        cheering. {n} jumped up and ran and ran, but it was too late. {f} was there first!

        {f} won the race and got the {tadj} {toy}. {n} was quiet. Then {he} said, "[Well done, {f}|You won, {f}]. I am
        sorry that I laughed at you." "[Thank you, {n}|That is all right]," said {f}. "[Slow and steady wins the
        race|You can run with me tomorrow]." {n} learned not to laugh at others. {trait_recalled} @end
        """,
    ),
    Plot(
        name="gift",
        about=("about a birthday", "about making a gift", "about {n} and a gift for {f}"),
        plan="It is {f}'s birthday. {n} has no money. {n} makes a {col2} {made}. {f} loves it.",
        questions=(
            ("Whose birthday was it?", "It was {f}'s birthday."),
            ("What did {n} make?", "{n} made a {col2} {made}."),
            ("What did the others give {f}?", "They gave {f} a {tadj} {toy}."),
        ),
        choices={"made": ("scarf", "kite", "card", "necklace", "box", "puppet", "cup", "boat", "pillow", "mask")},
        text="""
        @open {trait_told} {His} best friend was {f}, a {fadj} {fwho}. Soon it would be {f}'s birthday.

        "What can I give {f}?" {n} asked {his} {fam}. [{n} looked into {his} money box. There was only one small coin in
        it.|{n} had no money at all.] At the shop, there was a {tadj} {toy}, but it cost too much. @sad

        "[A gift does not have to cost money|The best gifts are made by hand]," said {his} {fam}. "What does {f} like?"
        @thought "{f} likes the color {col2}," said {n}. "I will make a {col2} {made}!" "[That is a lovely idea|Good
        idea]," said {his} {fam}.

        {n} worked [all day and the next day, too|every evening for a week]. {He} cut and glued and painted. [Once,
        everything went wrong, and {he} had to start again.|It was not easy, but it was fun.] At last, the {made} was
        done. {n} put it into a box with a ribbon.

        On the big day, all the friends came to {f}'s house {home2}. The others gave {f} a {tadj} {toy}. {n} was a
        little [shy|afraid]. What if {f} did not like the {made}? {f} opened the box. Then {fhe} [was very quiet|jumped
        up and down]. "A {col2} {made}!" said {f}. "Did you make it for me?" "Yes," said {n}.

        "[It is the best gift of all|I love it]!" said {f} and gave {n} a big hug. Then they ate {food} and sang and
        danced. {n} was happy because {f} was happy. {trait_recalled} @end
        """,
    ),
    Plot(
        name="picnic",
        about=("about a picnic", "about {n} and {f}, who have a picnic", "about a {w} day with a friend"),
        plan="{n} and {f} want to have a picnic {place}. {trouble_now}. They go {shelter} and eat there.",
        questions=(
            ("What did {n} bring to the picnic?", "{n} brought some {food}."),
            ("What did {f} bring to the picnic?", "{f} brought some {fruit}."),
            ("Where did they eat in the end?", "They ate {shelter}."),
        ),
        choices={
            "trouble_now,trouble,shelter": (
                "It begins to rain;It began to rain;under a big tree",
                "A strong wind comes;A strong wind came;in an old barn",
                "Many ants come;Many ants came;on top of a big rock",
                "A cold fog comes;A cold fog came;in {n}'s kitchen",
            )
        },
        text="""
        @open {trait_told} @day {n} said to {his} friend {ff}, "Let us have a picnic {place}!" "[What a good idea|Oh
        yes, let us do that]!" said {f}.

        {n} brought some {food} in a {col2} basket. {f} brought some {fruit} and a big blanket. They walked and walked.
        @detour [They sang a song about a {beast}.|They told each other riddles.] At last, they came to a nice spot.
        They put the blanket on the grass and sat down.

        But what was that? {trouble}! [{n} jumped up.|{f} looked up and frowned.] "[Our food|Our picnic]!" cried {n}.
        Quickly, they put everything back into the basket. "[What shall we do now|Is our picnic over]?" asked {f}. {n}
        felt sad. {He} had waited for this day all week.

        @thought "I know a place where we can go," said {n}. "Come with me!" They ran, hand in hand, as fast as they
        could. Soon they sat {shelter}. They were out of breath, and then they began to laugh.

        "[This is much better|It is nice here]," said {f}. They ate the {food} first, and then the {fruit}. A little
        bird came and looked at them, so they gave it something, too. "[It does not matter where we are|A picnic is nice
        anywhere]," said {n}, "[as long as we are together|if you have a friend]." {trait_recalled} @end
        """,
    ),
    Plot(
        name="letter",
        about=("about a letter", "about {n} and a friend far away", "about {n}, who misses {f}"),
        plan="{f} has moved far away. {n} misses {fhim}. {n} writes a letter about a {toy}. {f} answers and visits.",
        questions=(
            ("Why was {n} sad?", "{n} missed {f}."),
            ("Where did {f} live now?", "{f} lived {home2}, far away."),
            ("What did {n} put into the letter?", "{n} put a {col2} leaf into the letter."),
            ("How many days did {n} wait?", "{n} waited for {num} days."),
        ),
        text="""
        @open {trait_told} {His} best friend was {f}, a {fadj} {fwho}. They had done everything together. But then {f}
        moved to a new home far away. Now {f} lived {home2}.

        {n} missed {f} very much. {He} did not want to {use} {his} {tadj} {toy}, and {he} did not want to eat. "[What is
        the matter|Why are you so quiet]?" asked {his} {fam}. "I miss {f}," said {n}. "[Will {fhe} forget me?|It is not
        the same without {fhim}.]"

        "You can write a letter," said {his} {fam}. So {n} got a pencil and a sheet of paper. "Dear {f}," {he} wrote,
        "how are you? I am fine, but I miss you. Yesterday I saw a {beast} {place}, and I thought of you. Your friend,
        {n}." Then {he} put a {col2} leaf into the letter and took it to the post.

        {n} waited for one day. Nothing came. {n} waited for two days. Nothing came. "[Be patient|It is a long way],"
        said {his} {fam}. After {num} days, there was a letter for {n}! {His} hands shook when {he} opened it.

        "Dear {n}," wrote {f}, "thank you for the {col2} leaf. I put it on my wall. I miss you, too. May I come and see
        you in the summer?" @glad {n} ran through the house and shouted, "{f} is coming! {f} is coming!"

        In the summer, {f} came for a week. They played with the {toy} and ate {food} and talked and talked. [A good
        friend is never really far away.|They were still the best of friends.] {trait_recalled} @end
        """,
    ),
)
