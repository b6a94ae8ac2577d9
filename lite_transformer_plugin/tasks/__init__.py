"""Tasks that fairseq's commands find by `--task`."""
