"""BERT and RoBERTa in Hugging Face's format on disk, as fairseq has them."""
