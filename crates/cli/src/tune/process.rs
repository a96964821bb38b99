//! The process that measures: asked for a case with a line, it answers with a line of JSON. If it ends instead, another one
//! is started, which finds the note of the way that ended the first and does without it.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::Duration,
};

use clap::Args;
use millrace::{
    Device, DeviceKind,
    tensor::tune::{Case, Kept, Outcome, Tuner, Tuning},
};
use serde::{Deserialize, Serialize};

use crate::Failure;

/// How often a process is started again for all cases of a device together.
const MOST_RESTARTS: usize = 20;
/// What a case gets beyond its limit until its process is taken for dead: to open devices and to compile kernels.
const GRACE: Duration = Duration::from_secs(60);

/// The process that measures.
#[derive(Args)]
pub(crate) struct CaseOptions {
    device: String,
    #[arg(long, value_parser = crate::top::seconds)]
    limit: f64,
}

/// What came out of a case.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) case: String,
    pub(super) kept: Option<Kept>,
    pub(super) outcome: Result<Outcome, String>,
    pub(super) warnings: Vec<String>,
}

/// Answers until nobody asks any longer.
pub(crate) fn measure_cases(options: &CaseOptions) -> Result<(), Failure> {
    let device = millrace::runtime().open(&options.device)?;
    let tuner = Tuner::new(&device, None, Tuning::Kept).limit(Duration::from_secs_f64(options.limit));
    for line in io::stdin().lock().lines() {
        let line = line.map_err(failed)?;
        let case: Case = line.parse().map_err(failed)?;
        let outcome = tuner.tune(&device, &case).map_err(|error| error.to_string());
        let kept = tuner.results().remove(&case.to_string());
        let answer = Answer { case: case.to_string(), kept, outcome, warnings: tuner.warnings() };
        let text = serde_json::to_string(&answer).map_err(failed)?;
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(failed)?;
    }
    // Without waiting for what hangs: all is said.
    std::process::exit(0);
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// Measures cases on a device in a process of its own, and in another one if that ends.
pub(super) struct Measuring {
    device: String,
    kind: DeviceKind,
    limit: f64,
    running: Option<Running>,
    restarts: usize,
}

impl Measuring {
    pub(super) fn new(device: &Device, limit: f64) -> Self {
        let info = device.info();
        Self { device: info.id.clone(), kind: info.kind, limit, running: None, restarts: 0 }
    }

    /// Measures a case; `ended` hears how a process ended.
    pub(super) fn measure(&mut self, case: &Case, ended: impl Fn(&str)) -> Result<Answer, Failure> {
        // Each of its ways can end one, and is not tried by the next.
        let most = (self.restarts + case.op().ways(self.kind).len()).min(MOST_RESTARTS);
        loop {
            let mut running = match self.running.take() {
                Some(running) => running,
                None => Running::start(&self.device, self.limit)?,
            };
            let how = match running.ask(case, GRACE + Duration::from_secs_f64(3.0 * self.limit)) {
                Ok(answer) => {
                    self.running = Some(running);
                    return Ok(answer);
                }
                Err(how) => how,
            };
            ended(&how);
            if self.restarts >= most {
                let outcome = Err(format!("{how}, again and again"));
                return Ok(Answer { case: case.to_string(), kept: None, outcome, warnings: Vec::new() });
            }
            self.restarts += 1;
        }
    }
}

/// A process that waits for cases.
struct Running {
    child: Child,
    cases: ChildStdin,
    answers: Receiver<String>,
}

impl Running {
    fn start(device: &str, limit: f64) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["tune-cases", device, "--limit", &limit.to_string()]);
        // Ctrl-C is for the one who asks: a way that is interrupted would look like one that ended its process.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(cases), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("a process without pipes"));
        };
        let (sender, answers) = mpsc::channel();
        // Ends with the process, or when nobody listens.
        let read = move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        std::thread::Builder::new().name("millrace-tune".into()).spawn(read).map_err(failed)?;
        Ok(Self { child, cases, answers })
    }

    /// The answer, or how the process ended.
    fn ask(&mut self, case: &Case, patience: Duration) -> Result<Answer, String> {
        // That it cannot be written to is seen at once: no answer comes.
        let _ = writeln!(self.cases, "{case}");
        match self.answers.recv_timeout(patience) {
            Ok(line) => serde_json::from_str(&line).map_err(|error| format!("the process said nonsense ({error})")),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the process said nothing for {:.0} s and was ended", patience.as_secs_f64()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(match self.child.wait() {
                Ok(status) => format!("the process ended ({status})"),
                Err(error) => format!("the process ended ({error})"),
            }),
        }
    }
}

impl Drop for Running {
    /// Between two cases it has nothing to lose; inside of one it hangs.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
