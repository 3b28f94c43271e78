"""What `--help` says of those of transformers' own training arguments that people use, by group."""

OUTPUT, TRAINING, OPTIMIZER, LOSS = "Output", "Training", "Optimizer", "Loss"
EVALUATION, LOGGING, CARD, MACHINE = "Evaluation and checkpoints", "Logging", "Model card and Hub", "Machine"
BEAMS = "Beam search"
# Those fields of transformers' own that `--help` shows, by group
TRANSFORMERS_HELP = {
    OUTPUT: {"resume_from_checkpoint": "Checkpoint to resume (default: the last one)"},
    TRAINING: {
        "max_steps": "Optimizer steps (default: by the budget)",
        "gradient_accumulation_steps": "Batches per optimizer step",
        "seed": "Seed of weights, order, dropout",
    },
    LOSS: {
        "label_smoothing_factor": "Label smoothing",
    },
    OPTIMIZER: {
        "lr_scheduler_type": "Schedule: linear, cosine, ...",
        "lr_scheduler_kwargs": "Options of the schedule, as a JSON object",
        "adam_beta1": "Decay of Adam's first moment",
        "adam_epsilon": "Epsilon of Adam",
        "max_grad_norm": "Maximum gradient norm; 0 for no clipping",
    },
    LOGGING: {
        "report_to": "Trackers: tensorboard, wandb, mlflow, ..., all",
        "run_name": "Name of the run in the tracker",
    },
    CARD: {
        "push_to_hub": "Push the model to the Hub at the end",
        "hub_model_id": "user/name (default: name of the output folder)",
        "hub_private_repo": "Make a new repository private",
        "hub_token": "Token (default: that of hf auth login)",
    },
    MACHINE: {
        "bf16": "Mixed precision in bfloat16",
        "fp16": "Mixed precision in float16 (accelerators only)",
        "gradient_checkpointing": "Recompute activations, to save memory",
        "torch_compile": "Compile the model with torch.compile",
        "use_cpu": "Train on the CPU",
        "dataloader_num_workers": "Number of processes that prepare batches",
        "fsdp": "Shard the model (FSDP); see --fsdp_config",
        "deepspeed": "DeepSpeed configuration file",
    },
}
