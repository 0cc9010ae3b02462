"""A two-tower recommender whose tables of users and movies lie on several devices."""
