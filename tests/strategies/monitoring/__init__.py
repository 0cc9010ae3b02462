"""Tests of a job's status."""
