//! Every input that ever broke the reader or the tokenizer under fuzzing, and a few that reach far,
//! again: `fuzz/regressions/gguf`. `ops/fuzz` finds new ones.

#[path = "../../../fuzz/walks/gguf.rs"]
mod walk;

use vitriol_testkit::places::checkout;

#[test]
fn no_known_input_breaks_the_reader() {
    let directory = checkout().join("fuzz/regressions/gguf");
    let (mut replayed, mut tokenizers) = (0, 0);
    for file in std::fs::read_dir(&directory).unwrap() {
        let path = file.unwrap().path();
        // A failure below shows the file that was named last.
        println!("{}", path.display());
        tokenizers += u32::from(walk::walk(&std::fs::read(&path).unwrap()));
        replayed += 1;
    }
    assert!(tokenizers >= 3, "{tokenizers} inputs reach a tokenizer");
    assert!(
        replayed >= 6,
        "{} has {replayed} inputs",
        directory.display()
    );
}
