"""Run in a process of its own, where the package cannot be imported: loads models from a Hub by their ids."""

import transformers
from without_package import do_jobs, refusal


def check(job):
    """Load a model by its id, push it, and use its tokenizers."""
    auto_class = getattr(transformers, job["class"])
    report = {"refused": refusal(auto_class, job["id"])}
    model = auto_class.from_pretrained(job["id"], trust_remote_code=True)
    report["module"] = type(model).__module__
    model.push_to_hub(f"{job['id']}-again")
    answer = transformers.pipeline(job["task"], job["id"], trust_remote_code=True)(job["text"], **job["options"])
    report["pipeline"] = sorted(answer[0])
    if job["pair"]:
        target = transformers.AutoTokenizer.from_pretrained(job["id"], subfolder="target_tokenizer")
        report["target"] = target.get_vocab()
    return report


def work(jobs):
    report = {"models": {job["id"]: check(job) for job in jobs["models"]}}
    causal = transformers.AutoModelForCausalLM
    pinned = causal.from_pretrained(jobs["moved"], revision=jobs["pin"], trust_remote_code=True)
    moved = causal.from_pretrained(jobs["moved"], trust_remote_code=True)
    report["widths"] = [pinned.config.hidden_size, moved.config.hidden_size]
    report["private"] = refusal(causal, jobs["private"], token=False, trust_remote_code=True)
    return report


if __name__ == "__main__":
    do_jobs(work)
