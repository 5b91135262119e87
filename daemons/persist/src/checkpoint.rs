//! Whether a checkpoint is written, and whether it takes the place of the one before.

/// A checkpoint larger than this is not given up for one that holds nothing.
const WORTH_KEEPING_BYTES: u64 = 10 << 20;

/// What an engine has computed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The process: its counters begin anew with another.
    pub pid: u32,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
}

/// Whether there is anything new to save: a signature that is the one of the last save means that
/// nothing was computed, and writing the same gigabytes again would only wear the disk.
pub fn is_worth_saving(last_saved: Option<Signature>, now: Signature) -> bool {
    let has_computed = now.prompt_tokens > 0 || now.generated_tokens > 0;
    has_computed && last_saved != Some(now)
}

/// What a save has written, under a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub tokens: u64,
}

/// What becomes of the file that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// It takes the place of the old one.
    Replace,
    /// The old one stays; the new one is removed.
    KeepOld,
}

/// Whether what was `written` takes the place of a checkpoint of `old_bytes`: an engine that has just
/// restarted saves an empty one, which must not cost a conversation. `written`: `None`, the save failed.
pub fn decide_placing(old_bytes: Option<u64>, written: Option<Written>) -> Placing {
    match (written, old_bytes) {
        (None, _) => Placing::KeepOld,
        (Some(Written { tokens: 0 }), Some(old)) if old > WORTH_KEEPING_BYTES => Placing::KeepOld,
        (Some(_), _) => Placing::Replace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_already_is_not_saved_again() {
        let signature = |pid, prompt_tokens, generated_tokens| Signature {
            pid,
            prompt_tokens,
            generated_tokens,
        };
        let now = signature(7, 100, 20);
        assert!(is_worth_saving(None, now));
        assert!(!is_worth_saving(Some(now), now));
        assert!(is_worth_saving(Some(now), signature(7, 100, 21)));
        assert!(
            is_worth_saving(Some(now), signature(8, 100, 20)),
            "another process"
        );
        assert!(
            !is_worth_saving(Some(now), signature(8, 0, 0)),
            "it has done nothing yet"
        );
    }

    #[test]
    fn an_empty_checkpoint_does_not_cost_a_conversation() {
        let (empty, full) = (Some(Written { tokens: 0 }), Some(Written { tokens: 9 }));
        let large = Some(WORTH_KEEPING_BYTES + 1);
        assert_eq!(decide_placing(large, empty), Placing::KeepOld);
        assert_eq!(decide_placing(large, full), Placing::Replace);
        assert_eq!(
            decide_placing(Some(WORTH_KEEPING_BYTES), empty),
            Placing::Replace
        );
        assert_eq!(decide_placing(None, empty), Placing::Replace);
        assert_eq!(decide_placing(None, None), Placing::KeepOld);
        assert_eq!(decide_placing(large, None), Placing::KeepOld);
    }
}
