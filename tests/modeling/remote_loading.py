"""Run in a process of its own, where the package cannot be imported: loads, uses, saves and reloads saved folders.

Beside each folder stand inputs and what the package answers.
"""

from pathlib import Path

import torch
import transformers
from without_package import do_jobs, refusal, same_answers


def check(folder, name):
    """Compare with the package's answers, save, and compare again."""
    auto_class = getattr(transformers, name)
    expected = torch.load(f"{folder}.pt")
    model = auto_class.from_pretrained(folder, trust_remote_code=True).eval()
    again = f"{folder}_{name}_again"
    model.save_pretrained(again)
    reloaded = auto_class.from_pretrained(again, trust_remote_code=True).eval()
    equal = [same_answers(one, expected) for one in (model, reloaded)]
    known = type(model).__name__ in getattr(transformers, name)._model_mapping._model_mapping.values()
    details = {"class": type(model).__name__, "module": type(model).__module__, "known": known}
    return details | {"equal": equal, "again": again}


def part(folder, name):
    """Save the inner model of one with a head, and a config alone, of which a new model can be made."""
    model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
    model.base_model.save_pretrained(f"{folder}_base")
    transformers.AutoModel.from_pretrained(f"{folder}_base", trust_remote_code=True)
    transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True).save_pretrained(f"{folder}_config")
    config = transformers.AutoConfig.from_pretrained(f"{folder}_config", trust_remote_code=True)
    fresh = getattr(transformers, name).from_config(config, trust_remote_code=True)
    assert type(fresh).__name__ == type(model).__name__
    return f"{folder}_base", f"{folder}_config"


def work(jobs):
    report = {"refusals": [refusal(getattr(transformers, name), folder) for folder, name in jobs["models"]]}
    report["left"] = Path(jobs["trace"]).exists()
    report["models"] = [check(*job) for job in jobs["models"]]
    report["bases"] = [part(*job) for job in jobs["bases"]]
    report["bad refusal"] = refusal(transformers.AutoModelForCausalLM, jobs["bad"])
    report["left without the flag"] = Path(jobs["trace"]).exists()
    transformers.AutoModelForCausalLM.from_pretrained(jobs["bad"], trust_remote_code=True)
    return report | {"left with the flag": Path(jobs["trace"]).exists()}


if __name__ == "__main__":
    do_jobs(work)
