import copy
import math

import numpy as np
import pytest
import sacrebleu
import torch
from refusals import refused
from rouge_score.rouge_scorer import RougeScorer
from sklearn.metrics import accuracy_score, f1_score
from transformers import EvalPrediction

from vanillaformer.training.metrics import compute as m
from vanillaformer.training.metrics import scores as s
from vanillaformer.training.metrics.scores import added_scores, bleu, sacrebleu_signatures

TEXTS = ["the cat sat on the mat .", "a dog , a bone and a house !", "zwei Katzen"]
WANTED = ["the cat sat on a mat .", "a dog , a bone and a house !", "zwei Hunde"]


def test_bleu_tokenization_and_letter_case_are_in_the_signatures():
    chinese, wanted = ["今天天气很好"], ["今天天气不好"]
    score = sacrebleu.corpus_bleu(chinese, [wanted], tokenize="zh").score
    assert bleu(chinese, wanted, tokenize="zh") == pytest.approx(score)
    refused(r"bleu_tokenize='japanese'.*13a", bleu, chinese, wanted, tokenize="japanese")
    texts = [text.title() for text in TEXTS]
    score = bleu(texts, WANTED, tokenize="none", lowercase=True)
    assert score == pytest.approx(sacrebleu.corpus_bleu(texts, [WANTED], tokenize="none", lowercase=True).score)
    assert score == pytest.approx(sacrebleu.corpus_bleu(TEXTS, [WANTED], tokenize="none", force=True).score)
    assert score > bleu(texts, WANTED) + 10
    assert "case:lc" in sacrebleu_signatures("none", True)["bleu"]
    signatures = sacrebleu_signatures("intl")
    assert "tok:intl" in signatures["bleu"]
    assert "case:mixed" in signatures["bleu"]
    assert signatures["ter"].startswith("nrefs:1|case:lc|")
    assert f"version:{sacrebleu.__version__}" in signatures["chrf"]


METRIC = """
import datasets
import evaluate
import numpy as np


class Ratio(evaluate.Metric):
    def _info(self):
        texts = datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("string")))
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=texts)

    def _compute(self, predictions, references):
        ratio = len("".join(predictions)) / len("".join(references))
        return {"ratio": np.float32(ratio), "names": predictions, "bleu": ratio}
"""


def test_rouge_is_rouge_scores(tmp_path):
    """And a metric of `evaluate` adds its numbers, of each group too."""
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    predictions = ["The cat sat on a mat.\nIt slept_well!", "nothing", "", "b a c"]
    references = ["A cat sat on the mat.\nIt slept well.", "everything else", "x", "a b c"]
    scores = added_scores(kinds, predictions, references)
    scorer = RougeScorer(kinds)
    for kind in kinds:
        mean = np.mean([scorer.score(*pair)[kind].fmeasure for pair in zip(references, predictions)])
        assert scores[kind] == pytest.approx(100 * mean)
    assert added_scores(["rouge1"], ["Ärger über 日本"], ["ärger mit 日本"])["rouge1"] == pytest.approx(200 / 3)
    (tmp_path / "ratio.py").write_text(METRIC)
    (tmp_path / "other.py").write_text(METRIC)
    scores = added_scores([str(tmp_path / name) for name in ("ratio.py", "other.py")], ["ab", "c"], ["abcd", "ef"])
    assert scores == dict.fromkeys(["ratio", "ratio_bleu", "other_ratio", "other_bleu"], 0.5)
    with pytest.raises(ValueError, match=r"--metrics .*none\.py: not one of our scores, and evaluate cannot load it"):
        added_scores([str(tmp_path / "none.py")], ["a"], ["a"])


def test_groups_have_scores_of_their_own_and_a_score_keeps_its_options(translator_tokenizer):
    ids = translator_tokenizer(TEXTS, padding=True, return_tensors="np")["input_ids"]
    compute, pair = m.translation_metrics(translator_tokenizer, ["rougeL"]), EvalPrediction(ids, ids)
    scores = compute(pair, references=WANTED, groups=["b", "a", "b"])
    alone = compute(EvalPrediction(ids[[0, 2]], ids[[0, 2]]), references=[WANTED[0], WANTED[2]])
    names = {name: name if name == "gen_len" else f"{name}_b" for name in alone}
    assert alone == {name: scores[of] for name, of in names.items()} | {"gen_len": alone["gen_len"]}
    assert scores["bleu_a"] == pytest.approx(sacrebleu.corpus_bleu(TEXTS[1:2], [WANTED[1:2]]).score)
    names = dict.fromkeys(["exact_match", "gen_len"], 0.0)
    for group in ("match", "len", "de", "to_de"):
        found = {f"{name}_{each}": float(each == group) for name in names for each in ("match", "len", "de", "to_de")}
        assert s.scores_of_group(names | found, group) == dict.fromkeys(names, 1.0)
    compute = m.translation_metrics(translator_tokenizer, ["bleu"], lowercase=True)
    references = [text.upper() for text in translator_tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert compute(EvalPrediction(ids, ids), references=references)["bleu"] == pytest.approx(100)


def test_translation_metrics_decode_and_ignore_padding(translator_tokenizer):
    def ids(texts, start=()):
        rows = [[*start, *translator_tokenizer(text)["input_ids"]] for text in texts]
        width = max(map(len, rows)) + 2
        return np.array([row + [-100] * (width - len(row)) for row in rows])

    compute = m.translation_metrics(translator_tokenizer)
    labels = ids(WANTED)
    scores = compute(EvalPrediction(predictions=ids(TEXTS, start=[2]), label_ids=labels))
    for name in ("bleu", "chrf", "ter"):
        assert scores[name] == pytest.approx(getattr(sacrebleu, f"corpus_{name}")(TEXTS, [WANTED]).score)
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["gen_len"] == np.mean([len(text) + 1 for text in TEXTS])  # without the start token
    assert (labels == -100).any()  # the caller's array is not changed
    assert compute(EvalPrediction(predictions=(ids(WANTED), None), label_ids=labels))["exact_match"] == 100


@pytest.mark.parametrize("pad_token", ["<pad>", "</s>"])
def test_generated_tokens_are_counted_up_to_the_first_end_token(translator_tokenizer, pad_token):
    tokenizer = copy.deepcopy(translator_tokenizer)
    tokenizer.pad_token = pad_token
    pad, end, (a, b) = tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer("ab")["input_ids"][:2]
    outputs = np.array([
        [2, a, b, a, b, end],
        [2, a, end, end, end, end],  # as beam search fills up what has ended
        [2, end, pad, pad, pad, pad],
        [2, a, b, b, -100, -100],  # cut at the maximum length, in a batch of shorter texts
    ])  # fmt: skip
    scores = m.translation_metrics(tokenizer)(EvalPrediction(predictions=outputs, label_ids=outputs))
    assert scores["gen_len"] == np.mean([5, 2, 1, 3])
    outputs[:, 0] = end  # what some architectures start with
    scores = m.translation_metrics(tokenizer)(EvalPrediction(predictions=outputs, label_ids=outputs))
    assert scores["gen_len"] == np.mean([5, 2, 1, 3])


def test_classification_is_scikit_learns_and_perplexity_that_of_a_corpus():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 4)), rng.integers(0, 3, size=50)
    scores = m.classification_metrics(EvalPrediction(predictions=(logits, logits), label_ids=labels))
    chosen = logits.argmax(1)
    assert scores == {
        "accuracy": pytest.approx(accuracy_score(labels, chosen)),
        "f1": pytest.approx(f1_score(labels, chosen, average="macro")),
    }
    assert (m.perplexity(math.log(20)), m.perplexity(1e6)) == (pytest.approx(20), math.inf)
    assert s.corpus_perplexity([2.0, 4.0], [1, 2]) == pytest.approx(math.exp(2))


@pytest.mark.parametrize("causal", [True, False])
def test_language_model_scores_against_all_logits(causal):
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 7, 11), torch.randint(0, 11, (3, 7))
    labels[0, 4:] = -100
    labels[2, ::2] = -100
    predicted, losses = m.token_scores(causal=causal)((logits, "cache"), labels)
    assert predicted.shape == losses.shape == labels.shape
    # As Trainer pads what it collects.
    padded = [torch.nn.functional.pad(each, (0, 2), value=-100).numpy() for each in (predicted, losses, labels)]
    scores = m.language_model_metrics()(EvalPrediction(predictions=(padded[0], padded[1]), label_ids=padded[2]))
    seen, wanted = (logits[:, :-1], labels[:, 1:]) if causal else (logits, labels)
    loss = torch.nn.functional.cross_entropy(seen.reshape(-1, 11), wanted.reshape(-1)).item()
    kept = wanted != -100
    right = (seen.argmax(-1) == wanted)[kept].float().mean().item()
    assert scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(right)


def test_pretraining_scores_are_those_of_tokens_and_of_pairs():
    torch.manual_seed(0)
    logits, pair_logits = torch.randn(5, 7, 11), torch.randn(5, 2)
    labels, pairs = torch.randint(0, 11, (5, 7)), torch.tensor([0, 1, 1, 0, 1])
    labels[:, 3:] = -100
    kept = [each.numpy() for each in m.pretraining_scores((logits, pair_logits), (labels, pairs))]
    labels_of_both = labels.numpy(), pairs.numpy()
    scores = m.pretraining_metrics(EvalPrediction(predictions=tuple(kept), label_ids=labels_of_both))
    of_tokens = EvalPrediction(predictions=(kept[0], kept[1]), label_ids=labels.numpy())
    assert scores == {
        **m.language_model_metrics()(of_tokens),
        "next_sentence_accuracy": pytest.approx((pair_logits.argmax(-1) == pairs).float().mean().item()),
    }
