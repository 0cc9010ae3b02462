"""Ratings of movies in the layout of MovieLens 1M: one line `UserID::MovieID::Rating::Timestamp` per rating.

Pure numpy and no network. All problems are reported as a `DataError` with the file, the reason and the remedy.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common.options import OptionError

FILE = "ratings.dat"

#: Ratings of at least this value are clicks.
CLICK = 4
#: For each full group of this size among a user's ratings, one rating is held out: the last ones in time.
_RATINGS_PER_HELD_OUT = 10
_NOT_A_RATING = re.compile(rb"^(?!\d{1,9}::\d{1,9}::[1-5]::\d{1,12}\r?$)(.*)$", re.MULTILINE)

_log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]


class DataError(OptionError):
    """An unsuitable file; the message is one line for the user."""


@dataclass(frozen=True)
class Ratings:
    """Ratings as arrays of equal length.

    Attributes:
        users: numbers of the users.
        movies: numbers of the movies.
        ratings: from 1 to 5.
        timestamps: seconds since 1970.
    """

    users: Ids
    movies: Ids
    ratings: npt.NDArray[np.int8]
    timestamps: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.users)

    @property
    def num_users(self) -> int:
        """The number of rows of a table of users: one more than the largest number."""
        return int(self.users.max()) + 1

    @property
    def num_movies(self) -> int:
        """The number of rows of a table of movies: one more than the largest number."""
        return int(self.movies.max()) + 1

    @property
    def clicks(self) -> npt.NDArray[np.float32]:
        """1 for a rating of 4 or 5, else 0."""
        return (self.ratings >= CLICK).astype(np.float32)

    def at(self, indices: npt.NDArray[Any]) -> Ratings:
        """Returns the ratings at the given positions or where a mask is true."""
        return Ratings(self.users[indices], self.movies[indices], self.ratings[indices], self.timestamps[indices])


def load(path: Path) -> Ratings:
    """Returns the ratings in a file, and logs their number.

    Raises:
        DataError: the file cannot be read, has no ratings, or has another layout.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Give --data_dir the folder that has {FILE} of MovieLens 1M."
        ) from error
    ratings = parse(content, str(path))
    _log.info("data: %s; %d ratings of %d users", path, len(ratings), len(np.unique(ratings.users)))
    return ratings


def parse(content: bytes, name: str) -> Ratings:
    """Returns the ratings in the bytes of a file.

    Raises:
        DataError: the file has none, or a line is not `UserID::MovieID::Rating::Timestamp`.
    """
    content = content.rstrip()
    if not content:
        raise DataError(f"{name}: holds no ratings. Put the file of MovieLens 1M in its place.")
    wrong = _NOT_A_RATING.search(content)
    if wrong is not None:
        line = content.count(b"\n", 0, wrong.start()) + 1
        raise DataError(
            f"{name}: line {line} is not UserID::MovieID::Rating::Timestamp, with a rating from 1 to 5. Received: "
            f"{wrong[1][:60].decode(errors='replace')!r}."
        )
    table = np.array(content.replace(b"::", b" ").split(), dtype="S12").astype(np.int64).reshape(-1, 4)
    users, movies, ratings, timestamps = table.T
    return Ratings(users.astype(np.int32), movies.astype(np.int32), ratings.astype(np.int8), timestamps.copy())


def split(ratings: Ratings) -> tuple[Ratings, Ratings]:
    """Splits ratings into training ratings and held-out ones: of each user, the last tenth in time.

    Raises:
        DataError: no user has ten ratings.
    """
    order = np.lexsort((ratings.movies, ratings.timestamps, ratings.users))
    users = ratings.users[order]
    _, first, counts = np.unique(users, return_index=True, return_counts=True)
    to_end = np.repeat(first + counts, counts) - np.arange(len(users))
    is_held_out = to_end <= np.repeat(counts // _RATINGS_PER_HELD_OUT, counts)
    if not is_held_out.any():
        raise DataError(
            f"No user has {_RATINGS_PER_HELD_OUT} ratings, of which one is held out. Give a larger --num_ratings, or "
            "another --data_dir."
        )
    return ratings.at(order[~is_held_out]), ratings.at(order[is_held_out])
