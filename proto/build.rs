//! Compiles the house's proto packages with protox, so that a build needs no protoc.

use prost::Message;
use std::{env, path::PathBuf};

const FILES: [&str; 5] = [
    "vitriol/engine/v1/engine.proto",
    "vitriol/kvtier/v1/kvtier.proto",
    "vitriol/oom_shield/v1/oom_shield.proto",
    "vitriol/persist/v1/persist.proto",
    "vitriol/status/v1/status.proto",
];

#[expect(clippy::disallowed_methods, reason = "a build script is its own main")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    std::fs::write(out.join("vitriol.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
