"""What registers with fairseq as a model."""
