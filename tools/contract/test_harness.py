"""The contract tests' own logic: what counts as failed, missed and not applicable, and the exit code."""

import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import run
from harness import comparison, native, results, sdist
from harness.family import Family, load_families
from harness.results import Result

CONTRACT = Path(__file__).parent
PASSED = Result("passed")
EMPTY = Result("passed", models_built=0)
FAILED = Result("failed", "AssertionError: 1 != 2")
SKIPPED = Result("skipped", "Model does not have a TP plan.")
UNDECLARED = Result("skipped", "not applicable: the family declares no fill-mask pipeline")
NATIVE = native.NativeFamily(
    heads=["AutoModel", "AutoModelForMaskedLM"], passed=["test_a", "test_b"], passed_without_a_model=["test_b"]
)


def family(*heads: str) -> Family:
    return Family("encoder", "encoder", lambda: None, dict.fromkeys(heads, object), {}, reference="bert")


WITH_ALL_HEADS = family("AutoModel", "AutoModelForMaskedLM")
WITHOUT_HEAD = family("AutoModel")


def compare(of: Family = WITH_ALL_HEADS, whole: bool = True, **outcomes: Result) -> comparison.Comparison:
    return comparison.compare(of, {"test_b": EMPTY} | outcomes, NATIVE, whole)


def test_what_both_pass_is_no_miss() -> None:
    assert compare(test_a=PASSED) == comparison.Comparison(["test_a", "test_b"], {}, {})


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (FAILED, "failed: AssertionError: 1 != 2"),
        (SKIPPED, "skipped: Model does not have a TP plan."),
        (EMPTY, "passed without building a model"),
        (Result("failed", UNDECLARED.reason), f"failed: {UNDECLARED.reason}"),
        (Result("skipped", f"something is {UNDECLARED.reason}"), f"skipped: something is {UNDECLARED.reason}"),
    ],
)
def test_what_only_the_reference_passes_is_a_miss(result: Result, reason: str) -> None:
    assert compare(test_a=result).missed == {"test_a": reason}


def test_absent_test_is_a_miss_when_all_were_to_run() -> None:
    assert compare().missed == {"test_a": "absent"}
    assert compare(whole=False) == comparison.Comparison(["test_b"], {}, {})


def test_what_the_family_does_not_declare_does_not_apply() -> None:
    compared = compare(test_a=UNDECLARED)
    assert compared.missed == {}
    assert compared.not_applicable == {"test_a": "the family declares no fill-mask pipeline"}


def test_empty_pass_does_not_apply_to_a_family_without_the_head() -> None:
    compared = compare(WITHOUT_HEAD, test_a=EMPTY)
    assert compared.missed == {}
    assert compared.not_applicable == {"test_a": "built no model; the family has no AutoModelForMaskedLM"}
    assert compare(WITHOUT_HEAD, test_a=SKIPPED).missed.keys() == {"test_a"}


def test_only_what_the_reference_passes_can_be_missed() -> None:
    assert compare(test_a=PASSED, test_c=FAILED, test_d=SKIPPED).missed == {}


@pytest.mark.parametrize(
    ("test", "reason", "kind"),
    [
        ("test_pipeline_fill_mask", UNDECLARED.reason, "not applicable"),
        ("test_cpu_offload", "test requires accelerator", "no accelerator"),
        ("test_model_parallelism", "test requires multiple accelerators", "no accelerator"),
        ("test_flash_attn_2_can_dispatch_composite_models", "test requires Flash Attention", "library not installed"),
        ("test_torch_compile_for_training", "test is slow", "slow"),
        ("test_tp_forward_0", "Tensor parallel tests require at least 2 CPUs, but only 1", "too few CPUs"),
        ("test_moe_parallel_plans_shard_experts", "Not an MoE model", "no mixture of experts"),
        ("test_sdpa_can_dispatch_composite_models", "X does not support SDPA", "no composite model"),
        ("test_vision_axial_rope", "X has no axial RoPE layer defined.", "another kind of model"),
        ("test_tp_plan_matches_params", SKIPPED.reason, "feature not there"),
    ],
)
def test_skips_are_sorted_by_reason(test: str, reason: str, kind: str) -> None:
    assert results.skip_kind(test, reason) == kind


def test_results_are_read_from_junit(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text("""<testsuites><testsuite>
        <testcase classname="test_contract.encoder" name="test_a" time="1.5">
            <properties><property name="models_built" value="3"/></properties></testcase>
        <testcase classname="test_contract.encoder" name="test_b" time="0">
            <skipped message="test is slow">somewhere</skipped></testcase>
        <testcase classname="test_contract.decoder" name="test_a" time="0">
            <failure message="no">trace</failure></testcase>
        <testcase classname="test_contract.decoder" name="test_b" time="0"><error>crashed</error></testcase>
        <testcase classname="" name="test_contract" time="0"><error message="import"/></testcase>
    </testsuite></testsuites>""")
    read = results.read_junit(junit)
    assert read.keys() == {"encoder", "decoder"}
    assert read["encoder"]["test_a"] == Result("passed", seconds=1.5, models_built=3)
    assert read["encoder"]["test_b"].outcome == "skipped"
    assert read["encoder"]["test_b"].reason == "test is slow"
    assert read["decoder"]["test_a"] == Result("failed", "no", "trace", 0.0, models_built=0)
    assert (read["decoder"]["test_b"].outcome, read["decoder"]["test_b"].reason) == ("failed", "crashed")


def test_record_keeps_the_names_of_what_passed(tmp_path: Path) -> None:
    outcomes = {"test_b": PASSED, "test_a": EMPTY, "test_c": FAILED, "test_d": SKIPPED}
    record = native.NativeRecord.of([WITH_ALL_HEADS], {"encoder": outcomes})
    record.save(tmp_path / "record.json")
    assert native.NativeRecord.load(tmp_path / "record.json") == record
    assert record.families == {"encoder": native.NativeFamily(NATIVE.heads, ["test_a", "test_b"], ["test_a"])}


def test_tracked_record_has_every_reference() -> None:
    record = native.NativeRecord.load(CONTRACT / "native_passed.json")
    heads = {one.name: sorted(one.auto_classes) for one in load_families("native_families")}
    assert {name: entry.heads for name, entry in record.families.items()} == heads
    for ours in load_families("families"):
        assert len(record.families[ours.reference].passed) > 100


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({"test_a": PASSED, "test_b": PASSED, "test_c": SKIPPED}, 0),
        ({"test_a": UNDECLARED, "test_b": PASSED}, 0),
        ({"test_a": SKIPPED, "test_b": PASSED}, 1),
        ({"test_a": PASSED}, 1),
        ({"test_a": PASSED, "test_b": PASSED, "test_c": FAILED}, 1),
    ],
)
def test_exit_code(
    outcomes: dict[str, Result], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = native.NativeRecord("0.0", "0.0", {"bert": NATIVE})
    monkeypatch.setattr(run, "NEEDED", ())
    monkeypatch.setattr(run, "fetch_tests", lambda cache: cache)
    monkeypatch.setattr(run, "load_families", lambda module: [WITH_ALL_HEADS])
    monkeypatch.setattr(run.NativeRecord, "load", lambda path: record)
    monkeypatch.setattr(run.Session, "run", lambda self, tests: {"encoder": outcomes})
    assert run.main([]) == code
    printed = capsys.readouterr().out
    passed, failed = (sum(result.outcome == name for result in outcomes.values()) for name in ("passed", "failed"))
    assert any(line.split()[:3] == ["encoder", str(passed), str(failed)] for line in printed.splitlines())
    assert "native results are of transformers 0.0" in printed


def test_without_network_the_run_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = SimpleNamespace(returncode=1, stderr="WARNING: retry\nERROR: No matching distribution\n")
    monkeypatch.setattr(run, "NEEDED", ())
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    assert run.main(["--cache", str(tmp_path / "cache")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("skipped: could not fetch")
    assert "ERROR: No matching distribution" in printed
    assert not list((tmp_path / "cache").iterdir())


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "NEEDED", ("no_such_module", "pytest"))
    assert run.main([]) == 2
    assert "no_such_module: pip install -e '.[contract]'" in capsys.readouterr().err


def serve_sdist(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Let pip download an archive of these files; return the list of what was asked for."""
    downloads = []

    def download(command: list[str], **kwargs: object) -> SimpleNamespace:
        downloads.append(command[-1])
        folder = Path(command[command.index("--dest") + 1])
        with tarfile.open(folder / "transformers-1.0.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(__file__, f"transformers-1.0/{name}")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(sdist, "transformers_version", lambda: "1.0")
    monkeypatch.setattr(subprocess, "run", download)
    return downloads


def test_tests_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("tests/test_common.py", "tests/models/test_model.py", "src/tests.py", "tests/data.json")
    downloads = serve_sdist(monkeypatch, *names)
    for _ in range(2):
        assert [path.name for path in sdist.fetch_tests(tmp_path).iterdir()] == ["test_common.py"]
    assert downloads == ["transformers==1.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["transformers-1.0"]


def test_source_distribution_without_tests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_sdist(monkeypatch, "setup.py")
    with pytest.raises(sdist.Unavailable, match="no tests"):
        sdist.fetch_tests(tmp_path)
    assert not list(tmp_path.iterdir())
