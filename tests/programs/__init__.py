"""Programs that tests run: scripts for processes of their own, and models as practitioners publish them.

Of the latter each file has a `CASE`, which trains the same alone and under a strategy. They are written here, in the
shape of programs that many users start from; data are small and made up, layers tiny. What a program draws at random
comes with its data, since replicas draw on purpose what others do not.
"""
