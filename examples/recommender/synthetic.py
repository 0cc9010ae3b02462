"""Synthetic ratings with the sizes of MovieLens 1M, in a file of its layout, to run without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common.files import write_whole
from common.folders import make_folder

from recommender.ratings import FILE, Ratings

#: The sizes of MovieLens 1M, which has 1,000,209 ratings.
NUM_USERS, NUM_MOVIES = 6040, 3952
#: The first day of MovieLens 1M, 25 April 2000, and the number of seconds up to its last rating.
_FIRST_SECOND, _NUM_SECONDS = 956_700_000, 89_800_000
_NUM_TASTES = 6


def write(folder: Path, num_ratings: int) -> Path:
    """Returns the path of a file of `num_ratings` ratings in `folder`; writes the file unless it exists.

    Raises:
        OptionError: the folder cannot be made or written.
    """
    path = folder / FILE
    if not path.is_file():
        make_folder("--num_ratings", folder)
        made = make(NUM_USERS, NUM_MOVIES, num_ratings)
        lines = zip(
            *(column.tolist() for column in (made.users, made.movies, made.ratings, made.timestamps)), strict=True
        )
        # Several processes may write the same file.
        write_whole(path, "".join("{}::{}::{}::{}\n".format(*line) for line in lines))
    return path


def make(num_users: int, num_movies: int, num_ratings: int, seed: int = 0) -> Ratings:
    """Returns ratings by users whose tastes some movies suit better than others; each pair occurs at most once.

    A few users rate many movies, and a few movies are rated by many users, as in MovieLens.

    Args:
        num_users: number of users; their numbers begin with 1.
        num_movies: number of movies; their numbers begin with 1.
        num_ratings: number of ratings, at most half of all pairs.
        seed: random seed.
    """
    draw = np.random.default_rng(seed)
    activity, popularity = draw.lognormal(0.0, 0.9, num_users), draw.lognormal(0.0, 1.1, num_movies)
    pairs = np.zeros(0, np.int64)
    while len(pairs) < num_ratings:
        users = draw.choice(num_users, num_ratings, p=activity / activity.sum())
        movies = draw.choice(num_movies, num_ratings, p=popularity / popularity.sum())
        pairs = np.unique(np.concatenate([pairs, users * num_movies + movies]))
    pairs = draw.permutation(pairs)[:num_ratings]
    users, movies = pairs // num_movies, pairs % num_movies
    tastes = draw.standard_normal((num_users, _NUM_TASTES)) / np.sqrt(_NUM_TASTES)
    suits = draw.standard_normal((num_movies, _NUM_TASTES))
    scores = 3.6 + 0.4 * draw.standard_normal(num_users)[users] + 0.5 * draw.standard_normal(num_movies)[movies]
    scores += 0.8 * np.sum(tastes[users] * suits[movies], axis=1) + 0.5 * draw.standard_normal(num_ratings)
    ratings = np.clip(np.rint(scores), 1, 5)
    timestamps = _FIRST_SECOND + draw.integers(0, _NUM_SECONDS, num_ratings)
    return Ratings((users + 1).astype(np.int32), (movies + 1).astype(np.int32), ratings.astype(np.int8), timestamps)
