"""A crew of hands that live in this process: who is replaced, and when it gives up."""

import pytest

from klimb._crew import FALSE_STARTS, Crew, Ended


class Puppet:
    """A hand that does as the next word says."""

    def __init__(self, start="ready"):
        self.words, self.ended = [start], False

    def send(self, message):
        self.words.append(message)

    def receive(self):
        word = self.words.pop(0)
        if word == "die":
            raise Ended("it died")
        if word == "refuse":
            return ValueError("no such task")
        return None if word == "ready" else f"{word} done"

    def end(self):
        self.ended = True


def crew_of(*starts, count):
    made = []

    def start():
        made.append(Puppet(starts[len(made)] if len(made) < len(starts) else "ready"))
        return made[-1]

    def poll(hands, seconds):
        return [hand for hand in hands if hand.words]

    crew = Crew(count, start, poll, lambda hands: [hand.end() for hand in hands], cost=0.0)
    return crew, made


def test_a_hand_that_dies_at_work_is_replaced_and_its_work_reported():
    crew, made = crew_of(count=2)
    crew.wait_until_ready()
    crew.submit(7, "die")
    crew.submit(8, "dig")
    assert sorted(crew.wait()) == [(7, None, "it died"), (8, "dig done", None)]
    assert crew.room == 1
    crew.wait_until_ready()
    assert crew.room == 2
    assert [hand.ended for hand in made].count(True) == 1
    crew.submit(9, "hang")
    crew.give_up(9)
    assert [hand.ended for hand in made].count(True) == 2
    crew.close()
    crew.close()
    assert all(hand.ended for hand in made)
    assert crew.hands == []


@pytest.mark.parametrize(("start", "error"), [("die", RuntimeError), ("refuse", ValueError)])
def test_a_first_hand_that_cannot_start_is_an_error_at_once(start, error):
    crew, made = crew_of(start, count=1)
    with pytest.raises(error):
        crew.wait_until_ready()
    assert len(made) == 1


def test_later_the_crew_goes_on_without_hands_that_cannot_start_until_none_is_left():
    crew, made = crew_of("ready", "ready", *["die"] * 20, count=2)
    crew.wait_until_ready()
    crew.submit(1, "die")
    assert [done.lost for done in crew.wait()] == ["it died"]
    for _ in range(FALSE_STARTS):
        crew.wait()
    assert (crew.room, len(crew.hands)) == (1, 1)
    assert len(made) == 2 + FALSE_STARTS
    crew.submit(2, "dig")
    assert [done.answer for done in crew.wait()] == ["dig done"]
    crew.submit(3, "die")
    crew.wait()
    with pytest.raises(RuntimeError, match="it died before it was ready"):
        crew.wait()
