"""Measures how much the steps of a job cost more while its status is watched."""
