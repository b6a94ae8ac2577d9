"""Criteria that fairseq's commands find by `--criterion`."""
