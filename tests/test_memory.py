"""Answers to questions that depend on each other."""

import pytest

from retrofit.analysis.memory import Memory


def test_a_question_whose_answer_failed_is_asked_again():
    def fail() -> int:
        raise ValueError("cannot be read")

    memory = Memory(0)
    with pytest.raises(ValueError, match="cannot be read"):
        memory.once("a", fail)
    assert memory.once("a", lambda: 1) == 1


def test_an_answer_that_lacks_a_part_is_worked_out_again():
    """`b` is asked while `a` is open: it gets the provisional answer for it, which later questions must not see."""
    memory = Memory(0)

    def a() -> int:
        return 1 + memory.once("b", b)

    def b() -> int:
        return 10 + memory.once("a", a)

    assert memory.once("a", a) == 11
    assert memory.once("b", b) == 21
