"""The keys under which processes post on the board of their job."""

#: What a process waits for; empty text for nothing.
WAITS = "waits"
#: Text if a process computes while it waits.
BUSY = "computes while it waits"
#: Where a process was when it last told what it waits for.
POSITION = "position"
#: The error of a process' program, which may end it; empty once it goes on.
FAILED = "failed"
#: Why collectives cannot come to an end.
VERDICT = "verdict"
#: Asks all processes where they are.
QUESTION = "where are you"
_ANSWER = "here"


def answer_to(question: str) -> str:
    """Returns the key of the answers to a question."""
    return f"{_ANSWER} {question}"
