//! A group in a process of its own: what it leaves behind ends with it, and what befalls it befalls nobody else.
//!
//! The process says how far it is and what it measured as lines of JSON on its standard output ([`Line`]); whatever else
//! it prints is kept, and its last lines are shown if it does not come to its end. It ends by itself when its standard
//! input does, which is when whoever started it is gone, however that happened. A line there asks it to stop: it finishes
//! the turn under way and says what it has.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error,
    measure::{Better, LAST_TURN, Measured, Stop},
    report::Row,
    suites::{How, Suite},
};

/// How far a group is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The side whose turn it is.
    pub side: String,
    /// Turns that are over.
    pub done: usize,
    /// Turns in all.
    pub total: usize,
}

/// What the process of a group says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// It goes on.
    Step(Step),
    /// A number is there.
    Row(Box<Row>),
    /// It is over, and all numbers were said.
    End,
}

/// A group that will run in a process of its own.
#[derive(Debug)]
pub struct Isolated {
    /// What runs it.
    pub command: Command,
    /// How long it may say nothing. The clock begins anew with everything it says.
    pub timeout: Duration,
    /// How long it has to say what it has measured when it is asked to stop.
    pub patience: Duration,
}

/// [`Isolated::patience`] for a process that heeds [`heed_parent`]: its last turn, and some time to sum up.
pub const PATIENCE: Duration = LAST_TURN.saturating_add(Duration::from_secs(5));

/// What became of a group.
#[derive(Debug)]
pub struct Ended {
    /// What was measured, and if it did not come to its end a row that says why.
    pub rows: Vec<Row>,
    /// Whether it was asked to stop. Its rows say whether they were interrupted by that.
    pub stopped: bool,
}

/// Lines that are kept of what a process prints.
const LAST: usize = 6;
/// Characters that are kept of each.
const WIDEST: usize = 160;
/// How long the output of a process that has ended may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often a stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// What a reader hands over.
enum Heard {
    Line(Line),
    Text(String),
    Closed,
}

impl Isolated {
    /// Runs the group until it ends or hangs. When `stop` says so it is asked to say what it has. Nothing of it is left
    /// afterwards.
    ///
    /// ```
    /// use std::{process::Command, time::Duration};
    /// use millrace_lab::isolated::{Isolated, PATIENCE};
    /// let mut command = Command::new("sh");
    /// command.args(["-c", "echo about to fall; kill -SEGV $$"]);
    /// let isolated = Isolated { command, timeout: Duration::from_secs(10), patience: PATIENCE };
    /// let ended = isolated.run("group", &|| false, &mut |_| ());
    /// let why = ended.rows[0].target.as_deref().unwrap();
    /// assert!(ended.rows[0].is_error() && why.contains("SIGSEGV") && why.contains("about to fall"), "{why}");
    /// ```
    pub fn run(mut self, group: &str, stop: &dyn Fn() -> bool, progress: &mut dyn FnMut(&Step)) -> Ended {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        {
            // A group of its own: Ctrl-C is for whoever started it, and all it started ends with it.
            use std::os::unix::process::CommandExt as _;
            self.command.process_group(0);
        }
        let child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let why = format!("{} cannot be started: {error}", self.command.get_program().to_string_lossy());
                return Ended { rows: vec![failed(group, why)], stopped: false };
            }
        };
        Running::new(child).follow(group, [self.timeout, self.patience], stop, progress)
    }
}

/// A process that is under way. It is ended when this is dropped.
struct Running {
    child: Child,
    heard: Receiver<Heard>,
    last: VecDeque<String>,
}

impl Running {
    fn new(mut child: Child) -> Self {
        let (tx, heard) = channel();
        if let Some(out) = child.stdout.take() {
            listen(out, tx.clone(), true);
        }
        if let Some(out) = child.stderr.take() {
            listen(out, tx, false);
        }
        Self { child, heard, last: VecDeque::new() }
    }

    fn follow(
        mut self,
        group: &str,
        [timeout, patience]: [Duration; 2],
        stop: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(&Step),
    ) -> Ended {
        let (mut rows, mut ended, mut open) = (Vec::new(), false, 2);
        let mut deadline = Instant::now() + timeout;
        let (mut stopping, mut gone) = (None, None);
        let why = loop {
            match stopping {
                None if stop() => {
                    stopping = Some(Instant::now() + patience);
                    self.ask_to_stop();
                }
                Some(until) if Instant::now() > until => return Ended { rows, stopped: true },
                _ => {}
            }
            match self.heard.recv_timeout(LOOK) {
                Ok(Heard::Closed) => open -= 1,
                Ok(Heard::Text(text)) => self.keep(&text),
                Ok(Heard::Line(line)) => {
                    deadline = Instant::now() + timeout;
                    match line {
                        Line::Step(step) => progress(&step),
                        Line::Row(row) => rows.push(*row),
                        Line::End => ended = true,
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    // Its last words may still be on their way; its output may also be held open by what it left behind.
                    if let Ok(Some(status)) = self.child.try_wait()
                        && Instant::now() > *gone.get_or_insert_with(|| Instant::now() + LAST_WORDS)
                    {
                        break self.verdict(status, ended);
                    }
                }
            }
            if open == 0 {
                match self.exited(deadline) {
                    Some(status) => break self.verdict(status, ended),
                    None => break Some(format!("did not end within {timeout:?} after its last word")),
                }
            }
            if Instant::now() > deadline {
                break Some(format!("said nothing for {timeout:?} and was ended"));
            }
        };
        if let Some(why) = why.filter(|_| stopping.is_none() || !ended) {
            let last = self.last.iter().map(String::as_str).collect::<Vec<_>>().join(" | ");
            let last =
                if last.is_empty() { "it printed nothing".to_owned() } else { format!("its last lines: {last}") };
            rows.push(failed(group, format!("{why}; {last}")));
        }
        Ended { rows, stopped: stopping.is_some() }
    }

    /// By a line on its standard input, which stays open: its end would end the process at once.
    fn ask_to_stop(&mut self) {
        if let Some(input) = &mut self.child.stdin {
            let _ = input.write_all(b"stop\n").and_then(|()| input.flush()); // it is gone already
        }
    }

    fn keep(&mut self, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(text.trim_end().chars().take(WIDEST).collect());
    }

    fn exited(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }

    /// What is wrong with the way it ended, if anything is.
    fn verdict(&self, status: ExitStatus, ended: bool) -> Option<String> {
        match (status.success(), ended) {
            (true, true) => None,
            (true, false) => Some("ended before it was done".to_owned()),
            (false, _) => Some(format!("was {}", described(status))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // Also what it started; gone already if all went well.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn described(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            4 => " (SIGILL)",
            6 => " (SIGABRT)",
            7 => " (SIGBUS)",
            8 => " (SIGFPE)",
            9 => " (SIGKILL)",
            11 => " (SIGSEGV)",
            15 => " (SIGTERM)",
            _ => "",
        };
        return format!("ended by signal {signal}{name}");
    }
    status.code().map_or_else(|| "ended".to_owned(), |code| format!("ended with code {code}"))
}

/// The row of a group that did not come to its end.
fn failed(group: &str, why: String) -> Row {
    let outcome = Err(Error::Ended(why));
    let id = "millrace".to_owned();
    Row::new(group, Measured { outcome, ..Measured::nothing(id, "", Better::Lower) })
}

fn listen(out: impl Read + Send + 'static, tx: Sender<Heard>, lines: bool) {
    let read = move || {
        for line in BufReader::new(out).split(b'\n') {
            let Ok(line) = line else { break };
            let heard = match serde_json::from_slice(&line) {
                Ok(line) if lines => Heard::Line(line),
                _ => Heard::Text(String::from_utf8_lossy(&line).into_owned()),
            };
            if tx.send(heard).is_err() {
                return;
            }
        }
        let _ = tx.send(Heard::Closed); // nobody listens if it was ended
    };
    let _ = thread::Builder::new().name("lab-listen".to_owned()).spawn(read); // without it the group says nothing
}

/// The other end: measures one group and says it in lines.
pub fn measure(suite: Suite, group: &str, how: &How, out: &mut dyn Write) -> std::io::Result<()> {
    let mut say = |line: &Line| -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, line)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    let mut said = Ok(());
    let report = suite.run(how, &|name| name == group, &mut |progress| {
        if said.is_ok() {
            let (side, done, total) = (progress.side.to_owned(), progress.done, progress.total);
            said = say(&Line::Step(Step { side, done, total }));
        }
    });
    said?;
    report.rows.into_iter().try_for_each(|row| say(&Line::Row(Box::new(row))))?;
    say(&Line::End)
}

/// Ends this process as soon as its standard input does: whoever started it is gone.
pub fn end_with_parent() {
    let _ = heed_parent(); // nothing here can be stopped in a better way
}

/// Ends this process as soon as its standard input does. What is answered is asked to stop when something is said there.
pub fn heed_parent() -> Stop {
    let stop = Stop::default();
    let asked = stop.clone();
    let watch = move || {
        let mut buffer = [0; 64];
        while matches!(std::io::stdin().read(&mut buffer), Ok(1..)) {
            asked.ask();
        }
        // At once, without asking a driver that may hang.
        #[cfg(unix)]
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::process::exit(4);
    };
    let _ = thread::Builder::new().name("lab-parent".to_owned()).spawn(watch); // else the parent's signal has to do
    stop
}
