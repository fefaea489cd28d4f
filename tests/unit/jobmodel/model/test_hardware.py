"""GPU figures: Gres names, unknown types, overrides."""

import math

import pytest
from synergy_core.errors import UsageError

from synergyd.jobmodel.model.hardware import canonical, figures, is_slice, known_types


@pytest.mark.parametrize(
    ("gres", "name"),
    [
        ("a100", "a100-80"),
        ("A100-40", "a100-40"),
        ("A100-80GB", "a100-80"),
        ("nvidia_a100-sxm4-40gb", "a100-40"),
        ("nvidia_a100-sxm4-80gb", "a100-80"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("nvidia_h100_pcie", "h100-pcie"),
        ("nvidia_geforce_rtx_4090", "rtx4090"),
        ("tesla_v100-sxm2-16gb", "v100-16"),
        ("tesla_t4", "t4"),
        ("tesla_v100-pcie-32gb", "v100-pcie-32"),
        ("nvidia_a100-pcie-40gb", "a100-pcie-40"),
        ("nvidia_a100_80gb_pcie", "a100-pcie"),
        ("nvidia_h100_nvl", "h100-nvl"),
        ("nvidia_a10g", "a10g"),
        ("nvidia_rtx_6000_ada_generation", "rtx6000-ada"),
        ("nvidia_b200", "b200"),
        ("nvidia_l40", "l40"),
        ("nvidia_l40s", "l40s"),
        ("a100_1g.5gb", None),
        ("tpu", None),
        ("", None),
    ],
)
def test_gres_names(gres: str, name: str | None) -> None:
    assert canonical(gres) == name


def test_all_types_have_sane_figures() -> None:
    for name in known_types():
        gpu = figures(name)
        assert canonical(name) == name
        assert gpu.note == ""
        assert 0 < gpu.usable_bytes <= gpu.memory_gib * 2**30
        assert gpu.inter_gbs <= gpu.intra_gbs
        # arithmetic intensity of every part of the last ten years lies in here
        assert 2 < gpu.peak_tflops * 1e12 / (gpu.bandwidth_gbs * 1e9) < 500


@pytest.mark.parametrize(
    ("name", "bf16", "fp8", "tf32"),
    [  # data sheets, dense TFLOP/s; fp8 None where the part has none
        ("v100", 125, None, 15.7),
        ("a100-80", 312, None, 156),
        ("a40", 149.7, None, 74.8),
        ("l40s", 362, 733, 183),
        ("h100", 989, 1979, 495),
        ("h200", 989, 1979, 495),
        ("b200", 2250, 4500, 1125),
        ("rtx3090", 71, None, 35.6),
        ("t4", 65, None, 8.1),
    ],
)
def test_peaks_by_precision_are_the_data_sheets(name: str, bf16: float, fp8: float | None, tf32: float) -> None:
    gpu = figures(name)
    assert gpu.peak_tflops == bf16
    assert gpu.peak_tflops * gpu.fp32_speed == pytest.approx(tf32, rel=0.02)
    # what GEMMs gain is less than the nominal factor of two
    assert gpu.fp8_speedup == 1 if fp8 is None else 1 < gpu.fp8_speedup <= fp8 / bf16


def test_unknown_type_is_generic_and_says_so() -> None:
    gpu = figures("tpu")
    assert gpu.gpu_type == "tpu"
    assert "not known" in gpu.note
    assert gpu.peak_tflops == figures("generic").peak_tflops
    assert gpu.uncertainty > figures("a100").uncertainty
    main = dict.fromkeys(("peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs", "inter_gbs"), 100.0)
    assert figures("TPU", {"tpu": main}).note == ""


def test_overrides_of_the_gres_name_win() -> None:
    overrides: dict[str, dict[str, float]] = {
        "a100-80": {"inter_gbs": 12.5, "intra_gbs": 200},
        "nvidia_a100-sxm4-80gb": {"inter_gbs": 6},
    }
    gpu = figures("nvidia_a100-sxm4-80gb", overrides)
    assert (gpu.inter_gbs, gpu.intra_gbs, gpu.peak_tflops) == (6, 200, 312)
    assert figures("h100", overrides) == figures("h100")


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("tflops", 1),
        ("gpu_type", 1),
        ("flash", 1),
        ("peak_tflops", 0),
        ("peak_tflops", -1),
        ("peak_tflops", math.nan),
        ("memory_gib", math.inf),
        ("gemm_efficiency", 1.5),
        ("link_efficiency", 0),
    ],
)
def test_bad_overrides_name_the_figure(figure: str, value: float) -> None:
    with pytest.raises(UsageError, match=figure):
        figures("h100", {"h100": {figure: value}})


def test_a_mig_slice_is_a_type_of_its_own_with_a_part_of_its_gpus_figures() -> None:
    whole, part = figures("a100-80"), figures("nvidia_a100-sxm4-80gb_3g.40gb")
    assert part.peak_tflops == pytest.approx(whole.peak_tflops * 3 / 7) and part.memory_gib == 40
    assert part.bandwidth_gbs == pytest.approx(whole.bandwidth_gbs * 40 / whole.memory_gib)
    assert part.note == "" and part.uncertainty > whole.uncertainty and canonical("a100_3g.20gb") is None
    assert figures("1g.10gb").note.startswith("GPU type '1g.10gb' is not known")
    assert is_slice("H100_1g.12GB") and not is_slice("h100")
    known = {"a100_3g.20gb": {"peak_tflops": 99.0}}
    assert figures("a100_3g.20gb", known).peak_tflops == 99.0


@pytest.mark.parametrize(
    ("gres", "name"),
    [("mi300x", "mi300x"), ("amd_instinct_mi325x", "mi325x"), ("mi355x", "mi355x"), ("amd-mi250x", "mi250x")],
)
def test_amd_types_have_figures(gres: str, name: str) -> None:
    assert canonical(gres) == name and figures(gres).note == ""
