//! Figures of the machine, and the answers that a kernel is known by.

use vitriol_kernels_cpu::{Isa, ProbeMemory};

use crate::cpus;

#[test]
fn every_instruction_set_present_gives_the_known_answers() {
    for cpu in cpus(&[1, 2]) {
        cpu.check_known_answers().unwrap();
    }
}

#[test]
fn rates_are_numbers() {
    let memory = ProbeMemory::new(1 << 20).unwrap();
    for cpu in cpus(&[1, 2]) {
        let bandwidth = cpu.read_bandwidth(&memory);
        assert!(bandwidth.is_finite() && bandwidth > 0.0, "{cpu:?}");
        let peak = cpu.int8_peak();
        let multiplies = matches!(cpu.isa(), Isa::AvxVnni | Isa::Avx512);
        assert_eq!(peak.is_some(), multiplies, "{cpu:?}");
        assert!(peak.is_none_or(|rate| rate.is_finite() && rate > 0.0));
    }
}
