"""The keys under which processes post on the board of their job."""

#: The collectives for which a process waits; empty text for none.
WAITS = "waits"
#: Text if a process computes while it waits.
BUSY = "computes while it waits"
#: The position of a process when it last told its waits.
POSITION = "position"
#: The error of a process' program, which may end it; empty once it goes on.
FAILED = "failed"
#: The reason for which collectives cannot come to an end.
VERDICT = "verdict"
#: Asks all processes where they are.
QUESTION = "where are you"
_ANSWER = "here"


def answer_to(question: str) -> str:
    """Returns the key of the answers to a question."""
    return f"{_ANSWER} {question}"
