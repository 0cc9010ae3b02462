"""Additions to Keras for training across devices: layers whose weights are split, pipelines, and callbacks."""

from keras_ext.callbacks import LearningRateWarmup
from keras_ext.checkpoints import Checkpoints, Commits, TrainingPosition, load_weights
from keras_ext.expert import ExpertLoadHistory, MixtureOfExperts, replace_experts, track_expert_load
from keras_ext.job_timeline import JobTimeline
from keras_ext.memory import MemoryReport, memory_report
from keras_ext.memory_plan import MemoryPlan, memory_plan
from keras_ext.pipeline.graph_partition import PartitionByTime
from keras_ext.pipeline.model import PipelineModel
from keras_ext.pipeline.stage_layer import PipelineStage
from keras_ext.pipeline.timeline import Timeline
from keras_ext.planning import TrainingPlan, training_plan
from keras_ext.presets import from_preset
from keras_ext.rematerialization import rematerialize
from keras_ext.sharded_embedding import ShardedEmbedding
from keras_ext.tensor.attention import ParallelGroupQueryAttention, ParallelMultiHeadAttention
from keras_ext.tensor.channelwise import ShardwiseDropout
from keras_ext.tensor.conv import ColumnParallelConv2D, RowParallelConv2D
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense
from keras_ext.tensor.embedding import VocabParallelEmbedding, VocabParallelReversibleEmbedding
from keras_ext.tensor.feed_forward import ParallelFeedForward
from keras_ext.tensor.losses import (
    VocabParallelSparseCategoricalAccuracy,
    VocabParallelSparseCategoricalCrossentropy,
)
from keras_ext.tensor.parallelize import default_plan, parallelize
from keras_ext.tensor.plan import Plan
from keras_ext.tensor.positionwise import ShardwiseAdd, ShardwiseLayerNormalization, ShardwiseRMSNormalization
from keras_ext.tensor.transformer import ParallelTransformerBlock
from keras_ext.throughput import Throughput
from keras_ext.weights_comparison import WeightsComparison
from strategies.schedules import Partition, Schedule

__all__ = [
    "Checkpoints",
    "ColumnParallelConv2D",
    "ColumnParallelDense",
    "Commits",
    "ExpertLoadHistory",
    "JobTimeline",
    "LearningRateWarmup",
    "MemoryPlan",
    "MemoryReport",
    "MixtureOfExperts",
    "ParallelFeedForward",
    "ParallelGroupQueryAttention",
    "ParallelMultiHeadAttention",
    "ParallelTransformerBlock",
    "Partition",
    "PartitionByTime",
    "PipelineModel",
    "PipelineStage",
    "Plan",
    "RowParallelConv2D",
    "RowParallelDense",
    "Schedule",
    "ShardedEmbedding",
    "ShardwiseAdd",
    "ShardwiseDropout",
    "ShardwiseLayerNormalization",
    "ShardwiseRMSNormalization",
    "Throughput",
    "Timeline",
    "TrainingPlan",
    "TrainingPosition",
    "VocabParallelEmbedding",
    "VocabParallelReversibleEmbedding",
    "VocabParallelSparseCategoricalAccuracy",
    "VocabParallelSparseCategoricalCrossentropy",
    "WeightsComparison",
    "default_plan",
    "from_preset",
    "load_weights",
    "memory_plan",
    "memory_report",
    "parallelize",
    "rematerialize",
    "replace_experts",
    "track_expert_load",
    "training_plan",
]
