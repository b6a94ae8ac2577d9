"""`bert`: fairseq's `roberta` with BERT's layer norms and segment embeddings (Devlin et al. 2019).

The second system of Michel et al. 2019. RoBERTa, which has one segment, is a case of it. Weights
come from `fairseq-import-checkpoint`.
"""

from pathlib import Path

import torch
from fairseq import hub_utils
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.hub_interface import RobertaHubInterface
from fairseq.models.roberta.model import base_architecture
from fairseq.models.transformer import TransformerEncoder
from torch import Tensor, nn

from ..huggingface.tokenizer import BPE, TOKENIZER
from .settings import writable

ARCH = "bert"


@register_model(ARCH)
class BertModel(RobertaModel):
    """A BERT with the heads of `RobertaModel`: masked words, and classes of sentences or pairs.

    A pair is told from its separators, so it needs no input of its own: see ``segments_of``. The
    classification head of fairseq is BERT's pooler followed by its classifier.
    """

    @staticmethod
    def add_args(parser) -> None:
        """Add the flags of `roberta`, and ours."""
        RobertaModel.add_args(parser)
        parser.add_argument(
            "--layer-norm-eps",
            type=float,
            metavar="E",
            help="added to the variance in every layer norm (default: 1e-12)",
        )
        parser.add_argument(
            "--segments",
            type=int,
            metavar="N",
            help="segment embeddings: 2 for BERT, whose pairs have one separator between them, "
            "1 for RoBERTa, whose pairs have two (default: 2)",
        )

    @classmethod
    def build_model(cls, args, task):
        """Build the model that ``args`` describe."""
        with writable(args):
            take_defaults(args)
            return cls(args, BertEncoder(args, task.source_dictionary))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path,
        checkpoint_file="model.pt",
        data_name_or_path=".",
        bpe=BPE,
        **overrides,
    ):
        """A checkpoint in a folder, with the dictionary and the tokeniser beside it.

        Returns:
            fairseq's `RobertaHubInterface`, whose ``encode`` lays pairs out as this model has them.
        """
        overrides.setdefault(BPE, str(Path(model_name_or_path, TOKENIZER)))
        overrides.setdefault("load_checkpoint_heads", True)
        found = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, bpe=bpe, **overrides
        )
        return BertInterface(found["args"], found["task"], found["models"][0])


class BertEncoder(RobertaEncoder):
    """`RobertaEncoder` around a `BertSentenceEncoder`, every layer norm with the same epsilon."""

    def __init__(self, args, dictionary):
        super().__init__(args, dictionary)
        for module in self.modules():
            if hasattr(module, "normalized_shape"):  # torch's layer norm, or apex's
                module.eps = args.layer_norm_eps

    def build_encoder(self, args, dictionary, embed_tokens) -> "BertSentenceEncoder":
        return BertSentenceEncoder(args, dictionary, embed_tokens)


class BertSentenceEncoder(TransformerEncoder):
    """fairseq's encoder whose words know the sentence of the pair that they are in."""

    def __init__(self, args, dictionary, embed_tokens):
        super().__init__(args, dictionary, embed_tokens)
        self.separator = dictionary.eos()
        self.embed_segments = nn.Embedding(args.segments, embed_tokens.embedding_dim)

    def forward_embedding(
        self, src_tokens: Tensor, token_embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sums of word, segment and position embeddings, normalised, (B, T, C); and without these.

        Raises:
            ValueError: if a sentence or pair is longer than the table of positions.
        """
        length = src_tokens.size(1)
        if length > self.max_source_positions:
            raise ValueError(
                f"{length} tokens are more than the {self.max_source_positions} positions of the "
                "model: shorten the text, in fairseq-train by --shorten-method truncate"
            )
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        segments = segments_of(src_tokens, self.separator, self.embed_segments.num_embeddings)
        return super().forward_embedding(
            src_tokens, token_embedding + self.embed_segments(segments)
        )


def segments_of(tokens: Tensor, separator: int, segments: int) -> Tensor:
    """Which sentence of a pair each token belongs to.

    fairseq's `sentence_prediction` hands over tokens alone, ``<s> a </s> b </s>``. A separator ends
    the sentence in which it stands, as BERT counts: 0 up to the first, 1 from there on.

    Args:
        tokens: (B, T).
        separator: ``</s>``, BERT's [SEP].
        segments: how many there are; further sentences belong to the last.
    """
    ends = tokens.eq(separator).long()
    return (ends.cumsum(dim=1) - ends).clamp(max=segments - 1)


class BertInterface(RobertaHubInterface):
    """Text in, features and classes out: `RobertaHubInterface`, with BERT's layout of pairs."""

    def encode(
        self, sentence: str, *addl_sentences: str, no_separator: bool | None = None
    ) -> torch.LongTensor:
        """Token ids of ``<s> a </s> b </s>``, or with one segment of ``<s> a </s></s> b </s>``."""
        if no_separator is None:
            no_separator = self.model.args.segments > 1
        return super().encode(sentence, *addl_sentences, no_separator=no_separator)


@register_model_architecture(ARCH, ARCH)
def take_defaults(args) -> None:
    """The sizes of BERT-base where the command line says nothing else."""
    args.layer_norm_eps = getattr(args, "layer_norm_eps", 1e-12)
    args.segments = getattr(args, "segments", 2)
    base_architecture(args)
