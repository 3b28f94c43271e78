"""The project's own checks of a family, beside transformers' tests."""

from .configuration import ConfigurationChecks
from .forward import ForwardChecks
from .loading import LoadingChecks
from .parallel import ParallelChecks
from .pipelines import PipelineChecks
from .seq2seq import Seq2SeqChecks
from .training import TrainingChecks


class ContractChecks(
    ConfigurationChecks, ForwardChecks, LoadingChecks, ParallelChecks, PipelineChecks, Seq2SeqChecks, TrainingChecks
):
    """All of them."""
