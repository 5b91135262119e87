//! When the parts of a streamed answer arrived, and what follows from it. Pure.

use std::time::Duration;

use serde_json::Value;

/// What one event of a streamed completion brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub text: String,
    pub finish_reason: Option<String>,
    /// Tokens generated and prompt tokens reused, in the last event.
    pub counts: Option<Counts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub generated: u64,
    pub cached: u64,
}

impl Event {
    /// Reads the data of an event. Errors: the server's own message, or no JSON.
    pub fn read(data: &str) -> Result<Self, String> {
        let event: Value =
            serde_json::from_str(data).map_err(|error| format!("event is not JSON: {error}"))?;
        if let Some(error) = event.get("error") {
            let words = error["message"].as_str();
            return Err(words
                .unwrap_or("the stream broke off without a reason")
                .to_owned());
        }
        let choice = &event["choices"][0];
        let timings = event.get("timings");
        let count = |timings: &Value, name: &str| timings[name].as_u64().unwrap_or_default();
        Ok(Self {
            text: choice["text"].as_str().unwrap_or_default().to_owned(),
            finish_reason: choice["finish_reason"].as_str().map(str::to_owned),
            counts: timings.map(|timings| Counts {
                generated: count(timings, "predicted_n"),
                cached: count(timings, "cache_n"),
            }),
        })
    }
}

/// Times since the request was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Of every event with text.
    pub arrivals: Vec<Duration>,
    pub counts: Counts,
}

impl Timeline {
    /// Time to the first text.
    pub fn first(&self) -> Option<Duration> {
        self.arrivals.first().copied()
    }

    /// Longest time between two texts.
    pub fn longest_gap(&self) -> Option<Duration> {
        let pairs = self.arrivals.windows(2);
        pairs.map(|pair| pair[1].saturating_sub(pair[0])).max()
    }

    /// Tokens/s after the first text.
    pub fn rate(&self) -> Option<f64> {
        let (first, last) = (self.arrivals.first()?, self.arrivals.last()?);
        let seconds = last.saturating_sub(*first).as_secs_f64();
        let tokens = self.counts.generated.checked_sub(1)?;
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(ms: &[u64], generated: u64) -> Timeline {
        Timeline {
            arrivals: ms.iter().map(|&ms| Duration::from_millis(ms)).collect(),
            counts: Counts {
                generated,
                cached: 0,
            },
        }
    }

    #[test]
    fn figures_of_a_stream() {
        let stream = timeline(&[100, 110, 160, 200], 5);
        assert_eq!(stream.first(), Some(Duration::from_millis(100)));
        assert_eq!(stream.longest_gap(), Some(Duration::from_millis(50)));
        assert_eq!(stream.rate(), Some(4.0 / 0.1));
    }

    #[test]
    fn too_little_says_nothing() {
        for stream in [timeline(&[], 0), timeline(&[5], 1), timeline(&[5], 0)] {
            assert_eq!((stream.longest_gap(), stream.rate()), (None, None));
        }
    }

    #[test]
    fn events_of_the_wire() {
        let piece = r#"{"choices":[{"text":"Hi","finish_reason":null}]}"#;
        assert_eq!(Event::read(piece).unwrap().text, "Hi");
        let last = r#"{"choices":[{"text":"","finish_reason":"length"}],
            "timings":{"cache_n":64,"predicted_n":7}}"#;
        let last = Event::read(last).unwrap();
        assert_eq!(last.finish_reason.as_deref(), Some("length"));
        let counts = Counts {
            generated: 7,
            cached: 64,
        };
        assert_eq!(last.counts, Some(counts));
        let error = Event::read(r#"{"error":{"message":"the engine died"}}"#);
        assert_eq!(error, Err("the engine died".to_owned()));
        assert!(Event::read("hm").is_err());
    }
}
