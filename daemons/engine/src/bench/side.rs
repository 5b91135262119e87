//! A worker process: its birth, its answers, what else computed meanwhile, and its end.

use super::protocol::{Answer, Ready, Task};
use anyhow::{Context, bail};
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};
use vitriol_sysfs::{CpuTime, Sysfs};

/// Longest that a load or a task may take.
const DEADLINE: Duration = Duration::from_secs(900);

/// Longest answer that is read.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// How a worker is started; the model and its settings are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub program: OsString,
    pub args: Vec<OsString>,
}

/// Cores that others used while something was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Neighbours {
    /// By other processes of this machine.
    pub cores: f64,
    /// Taken by the host from this virtual machine.
    pub stolen_cores: f64,
}

/// A running worker. Dropping it ends its process.
#[derive(Debug)]
pub struct Side {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
    ready: Ready,
}

impl Side {
    /// Starts a worker and waits until it can compute.
    pub fn start(launch: &Launch, settings: &[OsString]) -> anyhow::Result<Self> {
        let program = launch.program.display().to_string();
        let mut child = Command::new(&launch.program)
            .args(&launch.args)
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let stdin = child.stdin.take().context("the worker has no input")?;
        let stdout = child.stdout.take().context("the worker has no output")?;
        // One answer at a time is wanted; a worker that says more waits.
        let (sender, lines) = sync_channel(1);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = String::new();
                let limited = &mut std::io::Read::take(&mut reader, LINE_BYTES_MAX);
                let read = limited.read_line(&mut line).map(|_| line);
                let over = !matches!(&read, Ok(line) if line.ends_with('\n'));
                if sender.send(read).is_err() || over {
                    return;
                }
            }
        });
        let mut side = Self {
            child,
            stdin,
            lines,
            ready: Ready {
                engine: program,
                isa: None,
                threads: 0,
                load_s: 0.0,
                model: None,
            },
        };
        match side.answer("load the model")? {
            Answer::Ready(ready) => side.ready = *ready,
            other => bail!("{} began with {other:?}", side.ready.engine),
        }
        Ok(side)
    }

    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Has a task done. Errors: it failed, or the worker ended.
    pub fn ask(&mut self, task: &Task) -> anyhow::Result<Answer> {
        let line = serde_json::to_string(task)?;
        let engine = &self.ready.engine;
        writeln!(self.stdin, "{line}").with_context(|| format!("ask {engine} for {line}"))?;
        match self.answer(&line)? {
            Answer::Failed(why) => bail!("{}: {line}: {why}", self.ready.engine),
            answer => Ok(answer),
        }
    }

    /// As [`Self::ask`], with what others computed from the question to the answer.
    pub fn ask_observed(&mut self, task: &Task) -> anyhow::Result<(Answer, Neighbours)> {
        let before = self.observe()?;
        let answer = self.ask(task)?;
        let after = self.observe()?;
        Ok((answer, Neighbours::between(&before, &after)))
    }

    /// Most resident memory so far, bytes.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        Ok(Sysfs::host().process_resident_bytes_max(self.child.id())?)
    }

    fn observe(&self) -> anyhow::Result<Observed> {
        let host = Sysfs::host();
        let own = host.process_cpu_s(std::process::id())?;
        Ok(Observed {
            at: Instant::now(),
            machine: host.cpu_time()?,
            ours_s: host.process_cpu_s(self.child.id())? + own,
        })
    }

    fn answer(&mut self, what: &str) -> anyhow::Result<Answer> {
        let engine = &self.ready.engine;
        let line = match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => line.with_context(|| format!("hear from {engine}"))?,
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "{engine}: {what}: no answer within {} s",
                    DEADLINE.as_secs()
                )
            }
            Err(RecvTimeoutError::Disconnected) => String::new(),
        };
        if !line.ends_with('\n') {
            bail!("{engine} ended before its answer to {what}; see what it said above");
        }
        serde_json::from_str(&line).with_context(|| format!("{engine}: {what}: odd answer {line}"))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Both fail only for one that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, Debug)]
struct Observed {
    at: Instant,
    machine: CpuTime,
    /// Of the worker and of this process, which waits for it.
    ours_s: f64,
}

impl Neighbours {
    fn between(before: &Observed, after: &Observed) -> Self {
        let seconds = (after.at - before.at).as_secs_f64();
        if seconds <= 0.0 {
            return Self::default();
        }
        let busy = after.machine.busy_s - before.machine.busy_s;
        let ours = after.ours_s - before.ours_s;
        let stolen = after.machine.stolen_s - before.machine.stolen_s;
        // The clocks tick apart, so that nothing may look like a little less.
        Self {
            cores: ((busy - ours) / seconds).max(0.0),
            stolen_cores: (stolen / seconds).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
        }
    }

    const READY: &str =
        r#"echo '{"ready":{"engine":"x 1","isa":null,"threads":1,"load_s":0.1,"model":null}}';"#;

    #[test]
    fn a_worker_answers_line_by_line() {
        let script = format!("{READY} while read task; do echo '{{\"seconds\":0.5}}'; done");
        let mut side = Side::start(&shell(&script), &[]).unwrap();
        assert_eq!(side.ready().engine, "x 1");
        let (answer, neighbours) = side.ask_observed(&Task::ReadBandwidth).unwrap();
        assert_eq!(answer, Answer::Seconds(0.5));
        assert!(neighbours.cores >= 0.0 && neighbours.cores.is_finite());
        assert!(side.peak_bytes().unwrap() > 0);
    }

    #[test]
    fn what_goes_wrong_is_named() {
        let failing = format!("{READY} read task; echo '{{\"failed\":\"no room\"}}'");
        let mut side = Side::start(&shell(&failing), &[]).unwrap();
        let error = side.ask(&Task::Int8Peak).unwrap_err().to_string();
        assert!(
            error.contains("int8_peak") && error.contains("no room"),
            "{error}"
        );
        let error = side.ask(&Task::Int8Peak).unwrap_err().to_string();
        assert!(error.contains("x 1"), "{error}");

        for (script, words) in [("exit 3", "ended before"), ("echo hm", "odd answer")] {
            let error = Side::start(&shell(script), &[]).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
        let nobody = Launch {
            program: "/nonexistent/worker".into(),
            args: Vec::new(),
        };
        let error = Side::start(&nobody, &[]).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/worker"), "{error}");
    }

    #[test]
    fn others_are_what_is_left_of_the_machine() {
        let at = Instant::now();
        let observed = |ms, busy_s, ours_s| Observed {
            at: at + Duration::from_millis(ms),
            machine: CpuTime {
                busy_s,
                stolen_s: busy_s / 10.0,
            },
            ours_s,
        };
        let two_s = Neighbours::between(&observed(0, 10.0, 5.0), &observed(2000, 13.0, 7.0));
        assert!((two_s.cores - 0.5).abs() < 1e-12, "{two_s:?}");
        assert!((two_s.stolen_cores - 0.15).abs() < 1e-9);
        let less = Neighbours::between(&observed(0, 10.0, 5.0), &observed(1000, 10.9, 6.0));
        assert_eq!(less.cores, 0.0);
    }
}
