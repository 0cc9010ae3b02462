"""The keys under which processes post in the key-value store of their job."""

#: The collectives for which a process waits, as `waits.to_text` writes them.
WAITS = "waits"
#: Not empty if a process computes while it waits.
BUSY = "computes while it waits"
#: The position of a process in its program when it last posted its waits.
POSITION = "position"
#: The error of a process' program, which may end the process; empty once the program continues.
FAILED = "failed"
#: The reason why collectives cannot complete.
VERDICT = "verdict"
#: A question to all processes: where they are in their programs.
QUESTION = "position request"
_ANSWER = "position reply"


def answer_to(question: str) -> str:
    """Returns the key under which processes post their answers to a question."""
    return f"{_ANSWER} {question}"
