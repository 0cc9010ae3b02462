"""Tests of `deploy/`. Those that need packages of a platform, or a fresh Debian, run by `make deploy-tests`."""
