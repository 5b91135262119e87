//! A model file of any bytes, or several parts of one: opened, walked, and its tokenizer used.
#![no_main]

#[path = "../walks/gguf.rs"]
mod walk;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = walk::walk(data);
});
