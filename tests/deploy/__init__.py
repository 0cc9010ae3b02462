"""Tests of `deploy/`. `make deploy-tests` runs all; `make test` skips those that need what is not installed."""
