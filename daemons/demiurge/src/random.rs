//! Random numbers from the kernel: ids that nobody can guess, seeds for requests that bring none.

/// 64 random bits.
pub fn bits() -> u64 {
    // The kernel's generator does not fail once the machine has booted.
    getrandom::u64().expect("the kernel's random generator answers")
}

/// A word of 24 hexadecimal digits that no other request has.
pub fn word() -> String {
    format!("{:016x}{:08x}", bits(), bits() as u32)
}
