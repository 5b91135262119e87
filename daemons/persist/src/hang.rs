//! Whether a daemon hangs.

/// What a daemon said of itself in one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing, within the deadline, though somebody listens.
    Silent,
    /// Nobody listens: it is not started, or on its way back; its supervisor's matter.
    Absent,
    /// It loads; so much of it is done.
    Starting { pid: u32, load_bytes_done: u64 },
    /// It serves; its loop has gone round so often.
    Ready { pid: u32, progress: u64 },
    /// It is on its way out, or has given up: its supervisor's matter.
    Ending { pid: u32 },
}

impl Answer {
    fn pid(self) -> Option<u32> {
        match self {
            Answer::Silent | Answer::Absent => None,
            Answer::Starting { pid, .. } | Answer::Ready { pid, .. } | Answer::Ending { pid } => {
                Some(pid)
            }
        }
    }
}

/// What a poll means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It lives, or has not been silent for long.
    Lives,
    /// It has stood still for as many polls as are allowed.
    Hangs,
}

/// The polls of one daemon.
///
/// A poll in which nothing has moved since the last one is a strike: no answer, a loop that has not gone
/// round (it does so when idle, too), a load that is where it was. Anything that moves, and another
/// process, takes all strikes back.
#[derive(Clone, Debug)]
pub struct HangWatch {
    strikes_max: u32,
    strikes: u32,
    last: Option<Answer>,
    pid: Option<u32>,
}

impl HangWatch {
    /// `strikes_max`: polls in a row without any movement that are a hang; at least 1.
    pub fn new(strikes_max: u32) -> Self {
        Self {
            strikes_max: strikes_max.max(1),
            strikes: 0,
            last: None,
            pid: None,
        }
    }

    /// What the next poll means. A daemon that hangs goes on doing so until something moves, so a caller
    /// that cannot restart it yet asks again with the next poll.
    pub fn poll(&mut self, answer: Answer) -> Verdict {
        let is_another = answer
            .pid()
            .is_some_and(|pid| self.pid.replace(pid) != Some(pid));
        let stands_still = match answer {
            Answer::Ending { .. } | Answer::Absent => false,
            // Never seen alive: it may not have been started yet.
            Answer::Silent => self.pid.is_some(),
            answer => self.last == Some(answer),
        };
        self.strikes = match stands_still && !is_another {
            true => (self.strikes + 1).min(self.strikes_max),
            false => 0,
        };
        // After silence it must move from where it was before.
        if answer != Answer::Silent {
            self.last = Some(answer);
        }
        match self.strikes == self.strikes_max {
            true => Verdict::Hangs,
            false => Verdict::Lives,
        }
    }

    /// It was restarted: until the next process answers, there is nothing to count.
    pub fn restarted(&mut self) {
        *self = Self::new(self.strikes_max);
    }

    pub fn strikes(&self) -> u32 {
        self.strikes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(progress: u64) -> Answer {
        Answer::Ready { pid: 7, progress }
    }

    fn verdicts(strikes_max: u32, answers: &[Answer]) -> Vec<bool> {
        let mut watch = HangWatch::new(strikes_max);
        let hangs = |&answer: &Answer| watch.poll(answer) == Verdict::Hangs;
        answers.iter().map(hangs).collect()
    }

    #[test]
    fn a_loop_that_stands_still_and_one_that_does_not_answer_hang() {
        let still = [ready(5), ready(5), ready(5), ready(5)];
        assert_eq!(verdicts(3, &still), [false, false, false, true]);
        let mixed = [ready(5), Answer::Silent, ready(5), Answer::Silent, ready(6)];
        assert_eq!(verdicts(3, &mixed), [false, false, false, true, false]);
    }

    #[test]
    fn what_moves_lives() {
        let slow = [
            ready(5),
            ready(5),
            ready(5),
            ready(6),
            ready(6),
            ready(6),
            ready(7),
        ];
        assert_eq!(verdicts(3, &slow), [false; 7]);
        let load = |load_bytes_done| Answer::Starting {
            pid: 7,
            load_bytes_done,
        };
        assert_eq!(
            verdicts(2, &[load(1), load(2), load(2), load(2)]),
            [false, false, false, true]
        );
    }

    #[test]
    fn another_process_begins_anew_and_one_that_ends_is_left_to_its_supervisor() {
        let other = Answer::Ready {
            pid: 8,
            progress: 5,
        };
        assert_eq!(
            verdicts(2, &[ready(5), ready(5), other, other, other]),
            [false, false, false, false, true]
        );
        let ending = Answer::Ending { pid: 7 };
        assert_eq!(verdicts(1, &[ready(5), ending, ending, ending]), [false; 4]);
        assert_eq!(
            verdicts(1, &[Answer::Silent; 4]),
            [false; 4],
            "never seen alive"
        );
        let absent = [ready(5), Answer::Absent, Answer::Absent, ready(5), ready(5)];
        assert_eq!(verdicts(1, &absent), [false, false, false, false, true]);
    }

    #[test]
    fn a_restart_is_waited_for() {
        let mut watch = HangWatch::new(1);
        watch.poll(ready(1));
        assert_eq!(watch.poll(ready(1)), Verdict::Hangs);
        assert_eq!(
            watch.poll(ready(1)),
            Verdict::Hangs,
            "until somebody does something"
        );
        watch.restarted();
        assert_eq!(watch.poll(Answer::Silent), Verdict::Lives);
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let pid = 1u32..3;
        prop_oneof![
            Just(Answer::Silent),
            Just(Answer::Absent),
            (pid.clone(), 0u64..3).prop_map(|(pid, load_bytes_done)| Answer::Starting {
                pid,
                load_bytes_done
            }),
            (pid.clone(), 0u64..3).prop_map(|(pid, progress)| Answer::Ready { pid, progress }),
            pid.prop_map(|pid| Answer::Ending { pid }),
        ]
    }

    proptest! {
        #[test]
        fn a_hang_needs_as_many_still_polls_as_are_allowed(
            answers in prop::collection::vec(answer(), 1..200),
            strikes_max in 1u32..6,
        ) {
            let mut watch = HangWatch::new(strikes_max);
            let mut since_movement = 0;
            let mut last = None;
            for answer in answers {
                let moved = match answer {
                    Answer::Silent => false,
                    answer => last.replace(answer) != Some(answer),
                };
                since_movement = if moved { 0 } else { since_movement + 1 };
                if watch.poll(answer) == Verdict::Hangs {
                    prop_assert!(since_movement >= strikes_max);
                }
                prop_assert!(watch.strikes() <= strikes_max);
            }
        }
    }
}
