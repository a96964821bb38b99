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
};
use crate::{
    Error, Result,
    measure::{Metric, Side, clock_cost},
    workloads::CAPACITY,
};

/// All of them.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let side = |name: &str, body: fn(&Effort) -> Result<Vec<Metric>>| {
        let effort = effort.clone();
        Side::new(name, move || body(&effort))
    };
    vec![side("limit", bounce), side("actix", with_actix), side("kameo", with_kameo), side("tokio", with_tokio)]
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
    effort: &Effort,
    mut ask: impl FnMut(Pair) -> F,
) -> Result<Vec<f64>> {
    let warm = Instant::now() + effort.turn / 2;
    while Instant::now() < warm {
        check_sum(ask(PAIR).await?)?;
    }
    let mut laps = Laps::new(effort.turn);
    loop {
        check_sum(ask(PAIR).await?)?;
        if !laps.lap() {
            return Ok(laps.samples);
        }
    }
}

fn gone<E: std::fmt::Display>(error: E) -> Error {
    Error::Device(format!("the actor did not answer: {error}"))
}

pub(super) fn rows(task: Vec<f64>, thread: Vec<f64>) -> Vec<Metric> {
    vec![Metric::lower("task", "ns", task), Metric::lower("thread", "ns", thread)]
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
fn bounce(effort: &Effort) -> Result<Vec<Metric>> {
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
    let mut bounce = || {
        line.0.store(n, Ordering::Release);
        while line.0.load(Ordering::Acquire) != n + 1 {
            spin_loop();
        }
        n += 2;
    };
    let warm = Instant::now() + effort.turn / 2;
    while Instant::now() < warm {
        bounce();
    }
    let mut laps = Laps::new(effort.turn);
    loop {
        bounce();
        if !laps.lap() {
            break;
        }
    }
    line.0.store(END, Ordering::Release);
    other.join().map_err(|_| Error::Panicked)?;
    Ok(vec![Metric::lower("", "ns", laps.samples)])
}

fn with_tokio(effort: &Effort) -> Result<Vec<Metric>> {
    let runtime = runtime()?;
    let (tx, mut rx) = mpsc::channel::<(Pair, oneshot::Sender<f32>)>(CAPACITY);
    runtime.spawn(async move {
        while let Some((pair, reply)) = rx.recv().await {
            let _ = reply.send(pair.a + pair.b); // an asker that is gone needs no answer
        }
    });
    let task = {
        let (tx, effort) = (tx.clone(), effort.clone());
        on_worker(&runtime, async move {
            let tx = &tx;
            asked(&effort, |pair| async move {
                let (reply, answer) = oneshot::channel();
                tx.send((pair, reply)).await.map_err(gone)?;
                answer.await.map_err(gone)
            })
            .await
        })?
    };
    let thread = pollster::block_on(asked(effort, |pair| {
        let (reply, answer) = oneshot::channel();
        let sent = tx.blocking_send((pair, reply)).map_err(gone);
        std::future::ready(sent.and_then(|()| answer.blocking_recv().map_err(gone)))
    }))?;
    runtime.shutdown_timeout(GOODBYE);
    Ok(rows(task, thread))
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
fn with_actix(effort: &Effort) -> Result<Vec<Metric>> {
    let system = actix::System::new();
    let arbiter = actix::Arbiter::new();
    let adder = ActixAdder::start_in_arbiter(&arbiter.handle(), |_| ActixAdder);
    let ask = |pair| {
        let answer = adder.send(pair);
        async { answer.await.map_err(gone) }
    };
    let task = system.block_on(asked(effort, ask))?;
    let thread = pollster::block_on(asked(effort, ask))?;
    let near = system.block_on(async {
        let adder = ActixAdder.start();
        let ask = |pair| {
            let answer = adder.send(pair);
            async { answer.await.map_err(gone) }
        };
        asked(effort, ask).await
    })?;
    arbiter.stop();
    arbiter.join().map_err(|_| Error::Panicked)?;
    let mut metrics = rows(task, thread);
    metrics.push(Metric::lower("same-thread", "ns", near));
    Ok(metrics)
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

fn with_kameo(effort: &Effort) -> Result<Vec<Metric>> {
    let runtime = runtime()?;
    let adder = {
        let _inside = runtime.enter();
        KameoAdder::spawn(KameoAdder)
    };
    let task = {
        let (adder, effort) = (adder.clone(), effort.clone());
        on_worker(&runtime, async move {
            let adder = &adder;
            asked(&effort, |pair| async move { adder.ask(pair).await.map_err(gone) }).await
        })?
    };
    let ask = |pair| std::future::ready(adder.ask(pair).blocking_send().map_err(gone));
    let thread = pollster::block_on(asked(effort, ask))?;
    drop(adder);
    runtime.shutdown_timeout(GOODBYE);
    Ok(rows(task, thread))
}
