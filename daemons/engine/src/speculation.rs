//! Tokens proposed before they are computed. A step verifies them in one batch and keeps those that would
//! have been sampled anyway, so an answer has the same bytes with drafts as without (ADR 2). Pure.

mod pace;
mod prompt_lookup;

pub use pace::{HOPE, Pace};
pub use prompt_lookup::PromptLookup;

use std::fmt::Debug;
use vitriol_profile::Speculation;

/// Most tokens drafted in a step, all sequences together: with the tokens before them they are about as
/// many rows as a matrix kernel computes at a time.
pub const DRAFTED_MAX: usize = 15;

/// Proposes how a sequence may go on.
pub trait Drafter: Debug {
    /// Appends up to `most` tokens that may follow `tokens` to `draft`; none where it has no idea.
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>);
}

/// The drafter of a setting; `None`: nothing is drafted.
pub fn drafter(speculation: Speculation) -> Option<Box<dyn Drafter>> {
    match speculation {
        Speculation::Off => None,
        Speculation::PromptLookup => Some(Box::new(PromptLookup)),
    }
}
