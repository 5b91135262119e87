use vitriol_kernels_core::{reference, tolerance};
use vitriol_kernels_cpu::{Cpu, RopeStyle, RopeTable};

use crate::random::Random;
use crate::{bits, check_agreement, cpus, first_difference};

/// Every chunk of 16 of this many elements is beyond what one thread takes alone.
const LONG: usize = 100_003;

#[test]
fn rms_norm_is_near_the_reference_and_independent_of_the_batch() {
    for cpu in cpus(&[1, 2]) {
        for d in [1, 15, 16, 48, 64, 100, 576, 2048, 4100] {
            let mut random = Random::new(d as u64);
            let n = 33;
            let x: Vec<f32> = random.units(n * d).iter().map(|v| v * 3.0).collect();
            let w = random.units(d);
            let mut out = vec![f32::NAN; n * d];
            cpu.rms_norm(&x, &w, 1e-5, n, d, &mut out);
            for (i, (&value, exact)) in out
                .iter()
                .zip(reference::rms_norm(&x, &w, 1e-5))
                .enumerate()
            {
                let error = (f64::from(value) - exact).abs();
                let bound = tolerance::ELEMENTWISE_RELATIVE * exact.abs();
                assert!(
                    error <= bound,
                    "{cpu:?} d {d} at {i}: {value} is not {exact}"
                );
            }
            for t in 0..n {
                let mut row = vec![f32::NAN; d];
                cpu.rms_norm(&x[t * d..][..d], &w, 1e-5, 1, d, &mut row);
                assert_eq!(
                    first_difference(&row, &out[t * d..][..d]),
                    None,
                    "d {d} row {t}"
                );
            }
        }
    }
}

#[test]
fn silu_mul_is_near_the_reference_over_the_whole_range() {
    for cpu in cpus(&[1, 2]) {
        let mut random = Random::new(1);
        let gate: Vec<f32> = (0..LONG)
            .map(|i| (i as f32 / LONG as f32 - 0.5) * 160.0)
            .collect();
        let up = random.units(LONG);
        let mut out = vec![f32::NAN; LONG];
        cpu.silu_mul(&gate, &up, &mut out);
        for (i, (&value, exact)) in out.iter().zip(reference::silu_mul(&gate, &up)).enumerate() {
            let error = (f64::from(value) - exact).abs();
            let bound = (tolerance::ELEMENTWISE_RELATIVE + tolerance::EXP_RELATIVE) * exact.abs();
            assert!(
                error <= bound + 1e-37,
                "{cpu:?} silu({}): {value} is not {exact}",
                gate[i]
            );
        }
        // The same element anywhere else, and in a tail.
        for at in [0, 5, 16, 77_777, LONG - 1] {
            let mut one = [f32::NAN];
            cpu.silu_mul(&gate[at..=at], &up[at..=at], &mut one);
            assert_eq!(one[0].to_bits(), out[at].to_bits(), "{cpu:?} at {at}");
        }
    }
}

/// Checks a gated activation against the reference over ±80, the bound widened by what the rounding of
/// the exponential's argument does to it; and each element against itself elsewhere.
fn check_gated(
    name: &str,
    op: impl Fn(&Cpu, &[f32], &[f32], &mut [f32]),
    exact: impl Fn(&[f32], &[f32]) -> Vec<f64>,
    argument: impl Fn(f64) -> f64,
) {
    for cpu in cpus(&[1, 2]) {
        let mut random = Random::new(1);
        let gate: Vec<f32> = (0..LONG)
            .map(|i| (i as f32 / LONG as f32 - 0.5) * 160.0 * random.unit())
            .collect();
        let up: Vec<f32> = random.units(LONG).iter().map(|v| v * 12.0).collect();
        let mut out = vec![f32::NAN; LONG];
        op(&cpu, &gate, &up, &mut out);
        for (i, (&value, exact)) in out.iter().zip(exact(&gate, &up)).enumerate() {
            let error = (f64::from(value) - exact).abs();
            let rounding = 3.0 * tolerance::F32_UNIT * argument(f64::from(gate[i])).abs().min(90.0);
            let relative = tolerance::ELEMENTWISE_RELATIVE + tolerance::EXP_RELATIVE + rounding;
            assert!(
                error <= relative * exact.abs() + 1e-34,
                "{cpu:?} {name}({}): {value} is not {exact}",
                gate[i]
            );
        }
        for at in [0, 5, 16, 77_777, LONG - 1] {
            let mut one = [f32::NAN];
            op(&cpu, &gate[at..=at], &up[at..=at], &mut one);
            assert_eq!(
                one[0].to_bits(),
                out[at].to_bits(),
                "{cpu:?} {name} at {at}"
            );
        }
    }
}

#[test]
fn gelu_mul_is_near_the_reference_over_the_whole_range() {
    check_gated("gelu", Cpu::gelu_mul, reference::gelu_mul, |g| {
        1.6 * g * (1.0 + 0.045 * g * g)
    });
}

#[test]
fn swiglu_clamped_is_near_the_reference_over_the_whole_range() {
    check_gated(
        "swiglu",
        |cpu, gate, up, out| cpu.swiglu_clamped(gate, up, 1.702, 7.0, out),
        |gate, up| reference::swiglu_clamped(gate, up, 1.702, 7.0),
        // u + 1 may cancel: u is off by nothing, its sum with 1 rounds once.
        |g| 1.702 * g,
    );
}

#[test]
fn softcap_is_near_the_reference() {
    for cpu in cpus(&[1, 2]) {
        let x: Vec<f32> = (0..LONG).map(|i| i as f32 * 0.01 - 400.0).collect();
        let mut out = x.clone();
        cpu.softcap(&mut out, 30.0);
        for (&x, &value) in x.iter().zip(&out) {
            let exact = reference::softcap(f64::from(x), 30.0);
            let error = (f64::from(value) - exact).abs();
            let bound = (tolerance::TANH_RELATIVE + 2.0 * tolerance::F32_UNIT) * exact.abs();
            assert!(
                error <= bound,
                "{cpu:?} softcap({x}): {value} is not {exact}"
            );
        }
    }
}

#[test]
fn rows_are_scaled_each_by_its_own() {
    for cpu in cpus(&[1, 2]) {
        let mut random = Random::new(2);
        let (n, d) = (LONG / 33, 33);
        let (x, factors) = (random.units(n * d), random.units(n));
        let mut out = x.clone();
        cpu.scale_rows(&mut out, &factors);
        for i in 0..n * d {
            assert_eq!(out[i], x[i] * factors[i / d]);
        }
        cpu.scale(&mut out, -2.0);
        for i in 0..n * d {
            assert_eq!(out[i], x[i] * factors[i / d] * -2.0);
        }
    }
}

#[test]
fn rope_turns_a_part_of_the_head() {
    let (n, heads, head_dim, n_rot, first) = (5, 2, 24, 8, 16);
    let table = RopeTable::from_turns(RopeStyle::Norm, vec![1.0, 0.1, 0.01, 0.001], 1.5);
    let mut angles = table.empty_angles();
    table.angles(&[0, 1, 7, 100, 5000], &mut angles);
    let x = Random::new(4).units(n * heads * head_dim);
    for cpu in cpus(&[1]) {
        let mut out = x.clone();
        cpu.rope_from(&angles, &mut out, head_dim, first);
        let part = |v: &[f32]| -> Vec<f32> {
            v.chunks(head_dim)
                .flat_map(|head| head[first..].to_vec())
                .collect()
        };
        let mut turned = part(&x);
        cpu.rope(&angles, &mut turned, n_rot);
        assert_eq!(bits(&part(&out)), bits(&turned));
        assert_ne!(bits(&part(&out)), bits(&part(&x)));
        for (head, before) in out.chunks(head_dim).zip(x.chunks(head_dim)) {
            assert_eq!(bits(&head[..first]), bits(&before[..first]));
        }
        // Position 0 does not turn, but the magnitude counts there, too.
        assert_eq!(out[first], x[first] * 1.5);
    }
}

#[test]
fn extreme_inputs_saturate_and_nan_stays_visible() {
    for cpu in cpus(&[1]) {
        let gate = [200.0, -200.0, f32::INFINITY, f32::NAN, 0.0, -0.0, 1e-40];
        let mut out = [9.0; 7];
        cpu.silu_mul(&gate, &[1.0; 7], &mut out);
        assert_eq!(out[0], 200.0);
        assert!(out[1].abs() < 1e-30);
        assert_eq!(out[2], f32::INFINITY);
        assert!(out[3].is_nan());
        assert_eq!([out[4], out[5]], [0.0, 0.0]);
        let mut out = [0.0; 3];
        cpu.rms_norm(&[1.0, f32::NAN, 2.0], &[1.0; 3], 1e-5, 1, 3, &mut out);
        assert!(out.iter().all(|v| v.is_nan()));
    }
}

#[test]
fn add_assign_adds_everything_once() {
    for cpu in cpus(&[1, 3]) {
        let mut random = Random::new(7);
        let (before, x) = (random.units(LONG), random.units(LONG));
        let mut acc = before.clone();
        cpu.add_assign(&mut acc, &x);
        for i in 0..LONG {
            assert_eq!(acc[i], before[i] + x[i], "{cpu:?} at {i}");
        }
    }
}

#[test]
fn rope_turns_both_styles_as_the_reference_does() {
    let factors: Vec<f32> = (0..24).map(|i| 1.0 + i as f32 / 8.0).collect();
    let mut random = Random::new(3);
    let (n, heads, head_dim, n_rot) = (200, 3, 64, 48);
    let positions: Vec<u32> = (0..n).map(|_| random.below(32_768) as u32).collect();
    let x = random.units(n * heads * head_dim);
    for style in [RopeStyle::Norm, RopeStyle::Neox] {
        for (linear_scale, factors) in [(1.0, None), (0.25, Some(&factors[..]))] {
            let turn =
                |pair| reference::rope_angle(1, pair, n_rot, 10_000.0, linear_scale, factors);
            let turns = (0..n_rot / 2).map(turn).collect();
            let table = RopeTable::from_turns(style, turns, 1.0);
            let mut angles = table.empty_angles();
            table.angles(&positions, &mut angles);
            let mut all = Vec::new();
            for cpu in cpus(&[1, 2]) {
                let mut out = x.clone();
                cpu.rope(&angles, &mut out, head_dim);
                all.push(out);
            }
            assert!(
                all.iter().all(|out| bits(out) == bits(&all[0])),
                "isa and threads agree"
            );
            for (index, head) in x.chunks(head_dim).enumerate() {
                let turns: Vec<f64> = (0..n_rot / 2)
                    .map(|pair| {
                        let position = positions[index / heads];
                        reference::rope_angle(position, pair, n_rot, 1e4, linear_scale, factors)
                    })
                    .collect();
                let expected = reference::rope(head, n_rot, style, &turns);
                for (d, exact) in expected.into_iter().enumerate() {
                    let value = all[0][index * head_dim + d];
                    // A pair's magnitude is at most √2 here.
                    let bound = tolerance::ROPE_RELATIVE * 1.5;
                    let error = (f64::from(value) - exact).abs();
                    assert!(
                        error <= bound,
                        "{style:?} head {index} at {d}: {value}, {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn instruction_sets_agree_bit_for_bit() {
    let mut random = Random::new(12);
    let (x, w) = (random.units(5 * 1000), random.units(1000));
    check_agreement("norm, silu, gelu, clamped and capped", |cpu| {
        let mut norm = vec![0.0; 5000];
        cpu.rms_norm(&x, &w, 1e-6, 5, 1000, &mut norm);
        let mut outs = [(); 4].map(|()| vec![0.0; 5000]);
        let [silu, gelu, clamped, capped] = &mut outs;
        cpu.silu_mul(&norm, &x, silu);
        cpu.gelu_mul(&norm, &x, gelu);
        cpu.swiglu_clamped(&norm, &x, 1.7, 0.5, clamped);
        capped.copy_from_slice(&norm);
        cpu.softcap(capped, 0.7);
        [norm, outs.concat()].concat()
    });
}

#[test]
fn heads_are_normed_in_place_as_rows_are() {
    for cpu in cpus(&[1, 2]) {
        for d in [1, 16, 20, 64, 128, 256, 1000] {
            let mut random = Random::new(d as u64);
            let rows = LONG / 256;
            let (x, w) = (random.units(rows * d), random.units(d));
            let mut out = vec![f32::NAN; rows * d];
            cpu.rms_norm(&x, &w, 1e-6, rows, d, &mut out);
            let mut in_place = x;
            cpu.rms_norm_in_place(&mut in_place, &w, 1e-6);
            assert_eq!(first_difference(&in_place, &out), None, "d {d}");
            let mut plain = in_place.clone();
            cpu.rms_scale_in_place(&mut plain, d, 1e-6);
            cpu.rms_norm_in_place(&mut in_place, &vec![1.0; d], 1e-6);
            assert_eq!(first_difference(&in_place, &plain), None, "d {d}");
        }
    }
}

#[test]
fn a_bias_is_added_to_every_row() {
    for cpu in cpus(&[1, 2]) {
        let mut random = Random::new(9);
        let (n, d) = (LONG / 33, 33);
        let (x, bias) = (random.units(n * d), random.units(d));
        let mut out = x.clone();
        cpu.add_bias(&mut out, &bias);
        let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + bias[i % d]).collect();
        assert_eq!(first_difference(&out, &expected), None);
    }
}
