use super::{extend, next_token};
use crate::speculation::Drafter;
use vitriol_testkit::Seed;

/// A drafter that knows the answer and errs now and then.
#[derive(Debug)]
pub struct Guesser {
    random: Seed,
    /// One token in so many is wrong.
    errs: usize,
}

impl Guesser {
    pub fn new(random: &mut Seed) -> Self {
        Self {
            errs: *random.choose(&[1, 2, 5, 50]),
            random: Seed::from(random.bits()),
        }
    }
}

impl Drafter for Guesser {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) {
        let (mut all, mut history) = (tokens.to_vec(), Vec::new());
        for _ in 0..self.random.below(most + 1) {
            extend(&mut history, &all);
            let right = next_token(history[all.len() - 1]);
            let wrong = self.random.below(self.errs) == 0;
            let id = right + u32::from(wrong);
            all.push(id);
            draft.push(id);
        }
    }
}
