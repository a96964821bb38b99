//! The probes: what the road calls while a profile is on, and the one load that it costs while none is.
//!
//! A command is stamped when it is submitted, and the stamp travels with it: whoever runs it looks at the stamp alone.
//! Spans go to the track of their stream, whose lock is taken by whoever drives it and, once, by whoever stops the profile,
//! so that streams do not wait for each other.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use millrace_ring::{BriefLock, TickClock};

use super::{
    Clock,
    log::{Log, Room},
};
use crate::{
    backend::Ran,
    command::{Command, CommandKind},
    context::lock,
    stream::StreamInner,
};

/// When a command was submitted, in ticks; zero if no profile was on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

/// What is noted of a command before it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    op: u32,
    bytes: u64,
    submitted: u64,
    start: u64,
    end: u64,
}

/// A span as it is kept: times in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    pub(super) op: u32,
    pub(super) clock: Clock,
    pub(super) failed: bool,
    pub(super) bytes: u64,
    pub(super) submitted: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The spans of a stream.
#[derive(Debug)]
pub(crate) struct Track {
    pub(super) stream: u64,
    pub(super) spans: BriefLock<Spans>,
}

#[derive(Debug, Default)]
pub(super) struct Spans {
    /// The profile that they belong to.
    session: u32,
    pub(super) log: Log<Raw>,
}

/// The kinds of commands, then the kernels: an operation's number is its place.
pub(super) const KINDS: [(CommandKind, &str); 7] = [
    (CommandKind::Write, "write"),
    (CommandKind::Read, "read"),
    (CommandKind::Copy, "copy"),
    (CommandKind::Fill, "fill"),
    (CommandKind::Synchronize, "synchronize"),
    (CommandKind::Mark, "mark"),
    (CommandKind::WaitFor, "wait"),
];

#[derive(Debug, Default)]
struct Names {
    kernels: Vec<Arc<str>>,
    places: HashMap<Arc<str>, u32>,
}

/// What a device's profiles need, on or off.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// The number of the profile that is on; zero while none is.
    session: AtomicU32,
    /// Commands that were stamped before do not belong to it.
    since: AtomicU64,
    clock: OnceLock<TickClock>,
    room: Room,
    names: Mutex<Names>,
    session_state: Mutex<Session>,
}

#[derive(Debug, Default)]
struct Session {
    last: u32,
    /// The moment it began.
    began: Option<(u64, Instant)>,
    tracks: Vec<Arc<Track>>,
    /// Ticks per nanosecond, for times of the device.
    rate: f64,
    /// What is added to the device's ticks to get ours.
    offset: Option<i64>,
}

/// What a profile recorded, before anybody has made sense of it.
pub(super) struct Recorded {
    pub(super) tracks: Vec<(u64, Log<Raw>)>,
    pub(super) names: Vec<Arc<str>>,
    pub(super) began: (u64, Instant),
    pub(super) ended: (u64, Instant),
}

impl Stamp {
    #[inline]
    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }
}

impl Recording {
    /// Stamps a command that is being submitted.
    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        if self.session.load(Ordering::Relaxed) == 0 { Stamp(0) } else { Stamp(self.now()) }
    }

    #[inline(never)]
    pub(super) fn now(&self) -> u64 {
        self.clock.get().map_or(0, TickClock::now)
    }

    /// A command that was stamped is about to run.
    #[inline]
    pub(crate) fn probe(&self, stamp: Stamp, command: &Command) -> Option<Probe> {
        stamp.is_set().then(|| self.begin(stamp, self.now(), command))
    }

    /// Out of line, as all that only happens while a profile is on.
    #[inline(never)]
    fn begin(&self, stamp: Stamp, start: u64, command: &Command) -> Probe {
        let (op, bytes) = match command {
            Command::Write(write) => (0, write.to.len as u64),
            Command::Read(read) => (1, read.from.len as u64),
            Command::Copy(copy) => (2, copy.to.len as u64),
            Command::Fill(fill) => (3, fill.to.len as u64),
            Command::Synchronize => (4, 0),
            Command::Mark(_) => (5, 0),
            Command::WaitFor(_) => (6, 0),
            Command::Launch(launch) => {
                let body = launch.body();
                let op = body.kernel().op(|name| self.name(name));
                (op, body.bindings().iter().map(|slice| slice.len as u64).sum())
            }
        };
        Probe { op, bytes, submitted: stamp.0, start, end: start }
    }

    /// The number of a kernel's name.
    #[cold]
    fn name(&self, name: &Arc<str>) -> u32 {
        let names = &mut *lock(&self.names);
        *names.places.entry(name.clone()).or_insert_with(|| {
            names.kernels.push(name.clone());
            (KINDS.len() + names.kernels.len() - 1) as u32
        })
    }

    /// The time, for a command that was stamped.
    #[inline]
    pub(crate) fn then(&self, stamp: Stamp) -> Stamp {
        if stamp.is_set() { Stamp(self.now()) } else { stamp }
    }

    /// A command that was stamped has run, on this thread, since `start`.
    #[inline(never)]
    pub(crate) fn ran(&self, stream: &StreamInner, stamp: Stamp, start: Stamp, command: &Command, failed: bool) {
        let end = self.now().max(start.0);
        self.keep(stream, Raw { end, ..self.begin(stamp, start.0, command).raw(Clock::Host, failed) });
    }

    /// A command that was stamped will not run.
    pub(crate) fn refused(&self, stream: &StreamInner, stamp: Stamp, command: &Command) {
        if let Some(probe) = self.probe(stamp, command) {
            self.keep(stream, probe.raw(Clock::Host, true));
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.session.load(Ordering::Relaxed) != 0
    }

    /// The time, or zero while no profile is on.
    pub(crate) fn now_if_on(&self) -> u64 {
        self.stamp().0
    }

    /// What the host does for a command began when it was probed, and ends now.
    pub(crate) fn note_end(&self, probe: &mut Probe) {
        probe.end = self.now().max(probe.start);
    }

    /// What the host does for a command began then, and ends now.
    pub(crate) fn note(&self, probe: &mut Probe, start: u64) {
        (probe.start, probe.end) = (start.max(probe.submitted), self.now().max(start).max(probe.submitted));
    }

    /// A batch has run, its commands when the device says.
    pub(crate) fn flown(&self, handed_over: u64, landed: u64, ran: Vec<Ran>) -> Flown {
        let device = |ran: &Ran| match *ran {
            Ran::Device { start, end } => Some((start, end.max(start))),
            _ => None,
        };
        let first = ran.iter().filter_map(device).map(|(start, _)| start).min();
        let last = ran.iter().filter_map(device).map(|(_, end)| end).max();
        let alignment = first.zip(last).map(|range| self.align((handed_over, landed), range));
        Flown { handed_over, landed, alignment, ran }
    }

    /// How far the device's clock is behind ours: a batch ran between the moment it was handed over and the moment it
    /// was seen to have run. What is known from earlier batches is kept as far as that allows.
    fn align(&self, (handed_over, landed): (u64, u64), (first, last): (u64, u64)) -> Alignment {
        let mut session = lock(&self.session_state);
        let rate = session.rate;
        let earliest = handed_over as i64 - (first as f64 * rate) as i64;
        let latest = (landed as i64 - (last as f64 * rate) as i64).max(earliest);
        let offset = session.offset.map_or(earliest, |offset| offset.clamp(earliest, latest));
        session.offset = Some(offset);
        Alignment { offset, rate }
    }

    /// A command of a batch has come to its end.
    pub(crate) fn landed(
        &self,
        stream: &StreamInner,
        probe: Probe,
        failed: bool,
        place: Option<usize>,
        flown: Option<&Flown>,
    ) {
        let raw = probe.raw(Clock::Host, failed);
        let Some(flown) = flown else { return self.keep(stream, raw) };
        let Some(place) = place else {
            // The device had nothing to do for it: it ends with those before it.
            let now = self.now().max(raw.submitted);
            return self.keep(stream, if failed { raw } else { Raw { start: now, end: now, ..raw } });
        };
        // It may have been recorded before the profile began.
        let handed_over = flown.handed_over.max(raw.submitted);
        let raw = match (flown.ran.get(place), &flown.alignment) {
            (Some(Ran::Host), _) => raw,
            (Some(Ran::Device { start, end }), Some(alignment)) => {
                let within = |ns| (alignment.ticks(ns).max(0) as u64).min(flown.landed).max(handed_over);
                let start = within(*start);
                Raw { start, end: within(*end).max(start), clock: Clock::Device, ..raw }
            }
            _ => Raw { start: handed_over, end: flown.landed.max(handed_over), clock: Clock::Batch, ..raw },
        };
        self.keep(stream, raw);
    }

    fn keep(&self, stream: &StreamInner, raw: Raw) {
        let track =
            stream.track.get_or_init(|| Arc::new(Track { stream: stream.id, spans: BriefLock::new(Spans::default()) }));
        let mut spans = track.spans.lock();
        // Under the lock: whoever stops the profile has said so before taking it.
        let session = self.session.load(Ordering::Acquire);
        if session == 0 || raw.submitted < self.since.load(Ordering::Relaxed) {
            return;
        }
        if spans.session != session && !self.enter(track, session, &mut spans) {
            return;
        }
        spans.log.push(raw, &self.room);
    }

    /// The first span of a stream in this profile; false if the profile has just ended.
    #[cold]
    fn enter(&self, track: &Arc<Track>, number: u32, spans: &mut Spans) -> bool {
        let mut session = lock(&self.session_state);
        if self.session.load(Ordering::Relaxed) != number {
            return false;
        }
        session.tracks.push(track.clone());
        *spans = Spans { session: number, log: Log::default() };
        true
    }

    /// Begins to record; none if that is done already.
    pub(super) fn start(&self, events: usize) -> Option<TickClock> {
        let clock = *self.clock.get_or_init(TickClock::pick);
        let mut session = lock(&self.session_state);
        if session.began.is_some() {
            return None;
        }
        session.began = Some(clock.pair());
        session.rate = clock.rate();
        session.offset = None;
        session.last = session.last.wrapping_add(1).max(1);
        self.room.set(events);
        self.since.store(clock.now(), Ordering::Relaxed);
        self.session.store(session.last, Ordering::Release);
        Some(clock)
    }

    /// Ends recording. Spans that come later are not kept.
    pub(super) fn stop(&self) -> Option<Recorded> {
        let mut session = lock(&self.session_state);
        let began = session.began?;
        self.session.store(0, Ordering::SeqCst);
        let tracks = std::mem::take(&mut session.tracks);
        drop(session); // whoever holds a track may be about to take it
        let taken = |track: Arc<Track>| (track.stream, std::mem::take(&mut *track.spans.lock()).log);
        let mut tracks: Vec<_> = tracks.into_iter().map(taken).collect();
        tracks.sort_by_key(|(stream, _)| *stream);
        let ended = self.clock.get().map_or(began, TickClock::pair);
        let mut names: Vec<_> = KINDS.iter().map(|(_, name)| Arc::from(*name)).collect();
        names.extend_from_slice(&lock(&self.names).kernels);
        let recorded = Recorded { tracks, names, began, ended };
        lock(&self.session_state).began = None; // and only now another may begin
        Some(recorded)
    }
}

impl Probe {
    fn raw(self, clock: Clock, failed: bool) -> Raw {
        let Self { op, bytes, submitted, start, end } = self;
        Raw { op, clock, failed, bytes, submitted, start, end }
    }
}

/// A batch that has come to its end, in ticks of ours.
#[derive(Debug)]
pub(crate) struct Flown {
    handed_over: u64,
    landed: u64,
    alignment: Option<Alignment>,
    /// When each of its commands ran.
    ran: Vec<Ran>,
}

impl Flown {
    /// A batch of a device that is lost; none if no profile is on.
    pub(crate) fn lost(handed_over: u64, now: u64) -> Option<Self> {
        (now != 0).then(|| Self { handed_over, landed: now, alignment: None, ran: Vec::new() })
    }
}

/// How the device's clock relates to ours.
#[derive(Debug, Clone, Copy)]
struct Alignment {
    offset: i64,
    rate: f64,
}

impl Alignment {
    fn ticks(&self, ns: u64) -> i64 {
        (ns as f64 * self.rate) as i64 + self.offset
    }
}
