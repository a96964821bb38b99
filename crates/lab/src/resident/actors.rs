//! Request and reply with the actor libraries that a Rust program would otherwise use, and with nothing but a cache line.
//!
//! Every peer runs in its own usual runtime, with as many workers as that takes by itself, and adds the same two numbers.
//! The asker is a task of that runtime, or a plain thread that blocks; both are measured, and we are held to the better one.

use std::{
    future::Future,
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use actix::Actor as _;
use kameo::actor::Spawn as _;
use tokio::sync::{mpsc, oneshot};

use super::{
    Effort,
    kernels::{PAIR, Pair, check_sum},
    ractor::with_ractor,
};
use crate::{
    Error, Result,
    measure::{Metric, Side, clock_cost},
    workloads::CAPACITY,
};

/// One peer: asks as it is told, and gives rows by asker.
pub type Peer = fn(&Pace) -> Result<Vec<Metric>>;

/// All of them; `limit` is two threads that bounce a cache line.
pub const PEERS: [(&str, Peer); 5] =
    [("limit", bounce), ("actix", with_actix), ("ractor", with_ractor), ("kameo", with_kameo), ("tokio", with_tokio)];

pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let side = |(name, peer): (&str, Peer)| {
        let pace = Pace::For(effort.turn);
        Side::new(name, move || peer(&pace))
    };
    PEERS.into_iter().map(side).collect()
}

/// How often is asked.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// For so long, after half of it to warm up, by every asker: a sample is one answer.
    For(Duration),
    /// So often, by this asker alone: there is one sample, the time of all.
    Count(u64, &'static str),
}

impl Pace {
    fn wants(&self, asker: &str) -> bool {
        !matches!(self, Self::Count(_, wanted) if *wanted != asker)
    }

    /// The rows of an asker, if it is wanted.
    pub(super) fn row(&self, asker: &'static str, samples: impl FnOnce() -> Result<Vec<f64>>) -> Result<Vec<Metric>> {
        if !self.wants(asker) {
            return Ok(Vec::new());
        }
        Ok(vec![Metric::lower(asker, "ns", samples()?)])
    }
}

/// Times one thing after another.
pub(super) struct Laps {
    clock: f64,
    end: Instant,
    before: Instant,
    /// Nanoseconds, less what the clock costs.
    pub(super) samples: Vec<f64>,
}

impl Laps {
    pub(super) fn new(budget: Duration) -> Self {
        let (clock, samples) = (clock_cost(), Vec::with_capacity(1 << 18));
        let start = Instant::now();
        Self { clock, end: start + budget, before: start, samples }
    }

    /// One is over; says whether there is time for another.
    #[inline]
    pub(super) fn lap(&mut self) -> bool {
        let now = Instant::now();
        self.samples.push(((now - self.before).as_nanos() as f64 - self.clock).max(1.0));
        self.before = now;
        now < self.end && self.samples.len() < self.samples.capacity()
    }
}

/// Asks again and again, one question at a time, and checks every answer.
pub(super) async fn asked<F: Future<Output = Result<f32>>>(
    pace: Pace,
    mut ask: impl FnMut(Pair) -> F,
) -> Result<Vec<f64>> {
    match pace {
        Pace::For(turn) => {
            let warm = Instant::now() + turn / 2;
            while Instant::now() < warm {
                check_sum(ask(PAIR).await?)?;
            }
            let mut laps = Laps::new(turn);
            loop {
                check_sum(ask(PAIR).await?)?;
                if !laps.lap() {
                    return Ok(laps.samples);
                }
            }
        }
        Pace::Count(count, _) => {
            for _ in 0..100 {
                check_sum(ask(PAIR).await?)?;
            }
            let start = Instant::now();
            for _ in 0..count {
                check_sum(ask(PAIR).await?)?;
            }
            Ok(vec![start.elapsed().as_nanos() as f64])
        }
    }
}

fn gone<E: std::fmt::Display>(error: E) -> Error {
    Error::Device(format!("the actor did not answer: {error}"))
}

/// tokio's usual runtime: a worker for every core.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_time().build().map_err(|error| Error::System(error.to_string()))
}

/// Runs a task on a worker, and waits for it here.
pub(super) fn on_worker<T: Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    task: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    runtime.block_on(runtime.spawn(task)).map_err(|_| Error::Panicked)?
}

/// How long a runtime is waited for when it ends.
pub(super) const GOODBYE: Duration = Duration::from_secs(2);

/// Two threads write one cache line in turns, and do nothing else.
fn bounce(pace: &Pace) -> Result<Vec<Metric>> {
    const END: u32 = u32::MAX;
    #[repr(align(128))]
    struct Line(AtomicU32);
    let line = Arc::new(Line(AtomicU32::new(0)));
    let other = {
        let line = line.clone();
        let body = move || {
            let mut expected = 1;
            loop {
                match line.0.load(Ordering::Acquire) {
                    END => return,
                    word if word == expected => {
                        line.0.store(expected + 1, Ordering::Release);
                        expected += 2;
                    }
                    _ => spin_loop(),
                }
            }
        };
        thread::Builder::new().name("lab-bounce".to_owned()).spawn(body)
    };
    let other = other.map_err(|error| Error::System(error.to_string()))?;
    let mut n = 1;
    let ask = |pair: Pair| {
        line.0.store(n, Ordering::Release);
        while line.0.load(Ordering::Acquire) != n + 1 {
            spin_loop();
        }
        n += 2;
        std::future::ready(Ok(pair.a + pair.b))
    };
    let samples = pollster::block_on(asked(*pace, ask))?;
    line.0.store(END, Ordering::Release);
    other.join().map_err(|_| Error::Panicked)?;
    Ok(vec![Metric::lower("", "ns", samples)])
}

fn with_tokio(pace: &Pace) -> Result<Vec<Metric>> {
    let (pace, runtime) = (*pace, runtime()?);
    let (tx, mut rx) = mpsc::channel::<(Pair, oneshot::Sender<f32>)>(CAPACITY);
    runtime.spawn(async move {
        while let Some((pair, reply)) = rx.recv().await {
            let _ = reply.send(pair.a + pair.b); // an asker that is gone needs no answer
        }
    });
    let mut rows = pace.row("task", || {
        let tx = tx.clone();
        on_worker(&runtime, async move {
            let tx = &tx;
            let ask = |pair| async move {
                let (reply, answer) = oneshot::channel();
                tx.send((pair, reply)).await.map_err(gone)?;
                answer.await.map_err(gone)
            };
            asked(pace, ask).await
        })
    })?;
    rows.extend(pace.row("thread", || {
        let ask = |pair| {
            let (reply, answer) = oneshot::channel();
            let sent = tx.blocking_send((pair, reply)).map_err(gone);
            std::future::ready(sent.and_then(|()| answer.blocking_recv().map_err(gone)))
        };
        pollster::block_on(asked(pace, ask))
    })?);
    runtime.shutdown_timeout(GOODBYE);
    Ok(rows)
}

struct ActixAdder;

impl actix::Actor for ActixAdder {
    type Context = actix::Context<Self>;
}

impl actix::Message for Pair {
    type Result = f32;
}

impl actix::Handler<Pair> for ActixAdder {
    type Result = f32;
    fn handle(&mut self, pair: Pair, _: &mut Self::Context) -> f32 {
        pair.a + pair.b
    }
}

/// The actor in an arbiter, the asker in the system's thread; `same-thread` has both in one, and crosses no thread.
fn with_actix(pace: &Pace) -> Result<Vec<Metric>> {
    let (pace, system, arbiter) = (*pace, actix::System::new(), actix::Arbiter::new());
    let adder = ActixAdder::start_in_arbiter(&arbiter.handle(), |_| ActixAdder);
    let ask = |pair| {
        let answer = adder.send(pair);
        async { answer.await.map_err(gone) }
    };
    let mut rows = pace.row("task", || system.block_on(asked(pace, ask)))?;
    rows.extend(pace.row("thread", || pollster::block_on(asked(pace, ask)))?);
    rows.extend(pace.row("same-thread", || {
        system.block_on(async {
            let adder = ActixAdder.start();
            let ask = |pair| {
                let answer = adder.send(pair);
                async { answer.await.map_err(gone) }
            };
            asked(pace, ask).await
        })
    })?);
    arbiter.stop();
    arbiter.join().map_err(|_| Error::Panicked)?;
    Ok(rows)
}

struct KameoAdder;

impl kameo::Actor for KameoAdder {
    type Args = Self;
    type Error = kameo::error::Infallible;
    async fn on_start(adder: Self, _: kameo::actor::ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(adder)
    }
}

impl kameo::message::Message<Pair> for KameoAdder {
    type Reply = f32;
    async fn handle(&mut self, pair: Pair, _: &mut kameo::message::Context<Self, f32>) -> f32 {
        pair.a + pair.b
    }
}

fn with_kameo(pace: &Pace) -> Result<Vec<Metric>> {
    let (pace, runtime) = (*pace, runtime()?);
    let adder = {
        let _inside = runtime.enter();
        KameoAdder::spawn(KameoAdder)
    };
    let mut rows = pace.row("task", || {
        let adder = adder.clone();
        on_worker(&runtime, async move {
            let adder = &adder;
            asked(pace, |pair| async move { adder.ask(pair).await.map_err(gone) }).await
        })
    })?;
    rows.extend(pace.row("thread", || {
        let ask = |pair| std::future::ready(adder.ask(pair).blocking_send().map_err(gone));
        pollster::block_on(asked(pace, ask))
    })?);
    drop(adder);
    runtime.shutdown_timeout(GOODBYE);
    Ok(rows)
}
