"""A two-tower recommender whose tables of users and movies are sharded over several devices."""
