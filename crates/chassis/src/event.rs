//! The kinds of event that an operator can look for: each has a MESSAGE_ID in the journal, by which
//! `journalctl MESSAGE_ID=…` finds it and `journalctl -x` explains it (units/catalog).
//!
//! An event names its kind in the field `message_id`:
//!
//! ```
//! use vitriol_chassis::event;
//! tracing::warn!(message_id = event::ENGINE_LOST, requests_lost = 2, "engine session ended");
//! ```
//! Events about one request carry `vitriol_session` (the client's X-Session-Id) and `vitriol_lane`
//! besides; in the journal they are VITRIOL_SESSION and VITRIOL_LANE. No event holds text of a prompt
//! or an answer.

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $id:literal;)*) => {
        $($(#[doc = $doc])+ pub const $name: &str = $id;)*

        /// Every kind: its name here and its id.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}

kinds! {
    /// A daemon can do its job now.
    DAEMON_READY = "b5f588fc402f4e30ba61d59ef2dfd3d2";
    /// A daemon takes nothing new and finishes what runs.
    DAEMON_DRAINS = "6f095a11f4894e0b942e577b5e0614bb";
    /// The drain deadline passed with answers still running; they are cut.
    DRAIN_DEADLINE_PASSED = "a5fd2f510b1a4cd5b9914db7c6db597a";
    /// A process does not start: its command line or its configuration is wrong (exit 64, 78).
    CONFIGURATION_REFUSED = "6738ef4a91264a21aceed224493b5f72";
    /// A process does not start: something it needs is missing, or a port, socket or lock is held by
    /// another (exit 69).
    DEPENDENCY_MISSING = "c1f7cd50cf8446f3a5978cbad6d11dc7";
    /// A process ends by a fault of ours (exit 70).
    DAEMON_FAILED = "d952969563eb452b84ae3caa3c98f6ad";
    /// The engine has read its weights and computed a first token with them.
    MODEL_LOADED = "b16f2c1d4812464b90a4f43dd7bf40fd";
    /// The model computed NaNs or infinities; the sequence they were for ends in an error.
    LOGITS_NOT_FINITE = "4fd069cf4210498a826997acc135b908";
    /// Demiurge has a session with the engine.
    ENGINE_REACHED = "6be1ab59f4914ef6b00d5717c8cc6105";
    /// Demiurge lost its session with the engine, and with it the requests that ran.
    ENGINE_LOST = "3a5b1bd7b9b545a5b77e336a78d10377";
    /// A request lost its engine before its answer began; the next one has it.
    REQUEST_RESUBMITTED = "c8f1e6a07b324d5d9a41f0e2738bd65c";
    /// A request was answered, or ended because its client left.
    REQUEST_ANSWERED = "23dd87f6567f4650bbbfa0c05c22a8d8";
    /// A request ended with an error.
    REQUEST_REFUSED = "9cf1464dfbb9437f83877943b003a7b1";
    /// Lines of decisions.jsonl cannot be written; requests go on without.
    DECISIONS_LOST = "79176c460b2748ab8cae9fcd04e35790";
    /// Lines of decisions.jsonl are written again.
    DECISIONS_RESUMED = "1839dc9e45a24bcf8911e4fd4a2b03ed";
    /// Memory is short, and the engine was asked to take nothing new for a while.
    MEMORY_PRESSURE = "792fd3b286774fc2bcd039af50c21b97";
    /// The OOM shield cannot do a part of its work here; the rest goes on.
    SHIELD_DEGRADED = "bee5a3e1ce2c4ad5b20b89e01fddef78";
    /// A daemon stood still for too long and was ended, for its supervisor to start it again.
    DAEMON_HUNG = "d0a1b06b6c1e4d0c9d4e3c8f5a7b9e21";
    /// What a launch of a daemon is made of: the line VITRIOL-FINGERPRINT.
    LAUNCH_FINGERPRINT = "e9b6a1c07d5f4f0ab0c3d2871f64a95e";
    /// A launch is made of something else than the one before it, or than the blessed one.
    LAUNCH_CHANGED = "37c5d0e48a1b4c69b2f7e05d9a8c6134";
    /// Little memory is available, and the engine is restarted where it stays so.
    MEMORY_SHORT = "b1d06f7e2c8349a5a4f3908be5d7261c";
    /// The mirror of the KV tier takes no records; answers go on without.
    MIRROR_LOST = "5c4b6f0e9a3d4c2f8e71d06b2f94a713";
    /// The mirror of the KV tier has been behind for a while: its disk is slower than KV is computed.
    MIRROR_BEHIND = "24cbd936bb95174cae7883d62b2c37c6";
    /// The mirror of the KV tier takes records again.
    MIRROR_RESUMED = "a84e2d7c15f046b3920c6e8d3b7f510a";
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::{Path, PathBuf},
    };

    use super::ALL;

    const CATALOG: &str = include_str!("../../../units/catalog/vitriol.catalog");

    /// Id → its entry of the catalog, header and text.
    fn catalog() -> BTreeMap<&'static str, &'static str> {
        let entries = CATALOG.split("\n-- ").skip(1);
        entries
            .map(|entry| entry.split_once('\n').expect("an id, then a newline"))
            .collect()
    }

    #[test]
    fn ids_are_distinct_and_of_the_journals_form() {
        let ids: BTreeSet<&str> = ALL.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids.len(), ALL.len());
        for (name, id) in ALL {
            let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            assert!(id.len() == 32 && id.chars().all(hex), "{name} = {id}");
        }
    }

    #[test]
    fn every_kind_is_explained_in_the_catalog_and_nothing_else() {
        let explained: BTreeSet<&str> = catalog().into_keys().collect();
        let kinds: BTreeSet<&str> = ALL.iter().map(|(_, id)| *id).collect();
        assert_eq!(explained, kinds);
        for (id, entry) in catalog() {
            let (head, text) = entry.split_once("\n\n").expect("a header, then the text");
            assert!(head.starts_with("Subject: "), "{id}: {head}");
            assert!(head.contains("\nDefined-By: VITRIOL"), "{id}: {head}");
            assert!(text.trim().len() > 40, "{id} explains nothing: {text}");
        }
    }

    fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                rust_files(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_kind_is_used_by_a_process() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = Vec::new();
        for part in ["crates/chassis/src", "daemons", "ops/vitriol/src"] {
            rust_files(&root.join(part), &mut files);
        }
        let sources: Vec<String> = files
            .iter()
            .filter(|path| !path.ends_with("chassis/src/event.rs"))
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        for (name, _) in ALL {
            let used = format!("event::{name}");
            assert!(
                sources.iter().any(|source| source.contains(&used)),
                "no process logs {name}"
            );
        }
    }
}
