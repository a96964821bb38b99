//! What is measured, each written once for every side.

use std::{
    hint::{black_box, spin_loop},
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    Error, Message, Parcel, Result,
    peers::{Client, Gone, Link, Rx, Server, Service, Tx},
};

/// What every queue holds, unless a workload says otherwise.
pub const CAPACITY: usize = 128;

fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|error| Error::System(error.to_string()))
}

fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().map_err(|_| Error::Panicked)
}

/// Looks until it is so: briskly at first, then giving the core away between two looks.
fn look_until(mut so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if so() {
            return;
        }
        spin_loop();
    }
    while !so() {
        thread::yield_now();
    }
}

fn check_sum(got: u64, expected: u64) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Sum { got, expected }) }
}

/// Sending and receiving on one thread: what a queue costs when nobody waits.
#[derive(Debug)]
pub struct Alone<T, R> {
    tx: T,
    rx: R,
}

impl<T: Tx<Message>, R: Rx<Message>> Alone<T, R> {
    /// A fresh queue.
    pub fn new<P: Link<Message, Tx = T, Rx = R>>(capacity: usize) -> Self {
        let (tx, rx) = P::pair(capacity);
        Self { tx, rx }
    }

    /// Sends; there must be room.
    #[inline]
    pub fn send(&mut self, message: Message) -> Result<()> {
        self.tx.send(message).map_err(|Gone| Error::Closed("the queue"))
    }

    /// Receives and consumes; there must be something.
    #[inline]
    pub fn receive(&mut self) -> Result<u64> {
        self.rx.recv().map(Message::consume).ok_or(Error::Closed("the queue"))
    }
}

/// Requests to a server thread, one at a time.
#[derive(Debug)]
pub struct RoundTrip<C> {
    /// `None` only while it is being dropped.
    client: Option<C>,
    server: Option<JoinHandle<()>>,
}

impl<C: Client> RoundTrip<C> {
    /// Starts the server.
    pub fn start<P: Service<Client = C>>() -> Result<Self> {
        let (client, mut server) = P::connect(CAPACITY);
        let server = spawn("lab-server", move || while server.answer(Message::consume).is_ok() {})?;
        Ok(Self { client: Some(client), server: Some(server) })
    }

    /// Asks, waits for the answer and checks it.
    #[inline]
    pub fn ask(&mut self, message: Message, expected: u64) -> Result<()> {
        let answer = self.client.as_mut().and_then(|client| client.ask(message).ok());
        check_sum(answer.ok_or(Error::Closed("the server"))?, expected)
    }
}

impl<C> Drop for RoundTrip<C> {
    fn drop(&mut self) {
        self.client = None;
        if let Some(server) = self.server.take() {
            let _ = server.join(); // if it panicked, the asker was told
        }
    }
}

/// One producer, one consumer thread, in batches: a batch is over when the consumer has all of it.
#[derive(Debug)]
pub struct Flow<T, M = Message> {
    tx: T,
    parcels: PhantomData<fn(M)>,
    consumer: JoinHandle<u64>,
    /// Batches that the consumer has finished; it is told of each once.
    finished: Arc<AtomicU64>,
    batch: usize,
    batches: u64,
    sum: u64,
}

impl<T: Tx<M>, M: Parcel> Flow<T, M> {
    /// Starts the consumer.
    pub fn start<P: Link<M, Tx = T>>(capacity: usize, batch: usize) -> Result<Self> {
        let (tx, mut rx) = P::pair(capacity);
        let finished = Arc::new(AtomicU64::new(0));
        let finished_by_consumer = finished.clone();
        let consumer = spawn("lab-consumer", move || {
            let (mut sum, mut received) = (0, 0);
            while let Some(message) = rx.recv() {
                sum += message.consume();
                received += 1;
                if received == batch {
                    finished_by_consumer.fetch_add(1, Ordering::Release);
                    received = 0;
                }
            }
            sum
        })?;
        Ok(Self { tx, parcels: PhantomData, consumer, finished, batch, batches: 0, sum: 0 })
    }

    /// Sends a batch and waits until it was consumed.
    pub fn batch(&mut self, message: &M) -> Result<()> {
        for _ in 0..self.batch {
            self.tx.send(message.clone()).map_err(|Gone| Error::Closed("the consumer"))?;
        }
        self.batches += 1;
        self.sum += self.batch as u64 * message.clone().consume();
        look_until(|| self.finished.load(Ordering::Acquire) == self.batches || self.consumer.is_finished());
        Ok(())
    }

    /// Ends the consumer and checks that it got everything.
    pub fn finish(self) -> Result<()> {
        drop(self.tx);
        check_sum(join(self.consumer)?, self.sum)
    }
}

/// Threads that wait to begin together.
struct Gate {
    arrived: AtomicUsize,
    open: AtomicBool,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { arrived: AtomicUsize::new(0), open: AtomicBool::new(false) })
    }

    fn pass(&self) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while !self.open.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    /// Opens when `threads` have arrived; the moment it did.
    fn open(&self, threads: usize) -> Instant {
        while self.arrived.load(Ordering::Acquire) < threads {
            thread::yield_now();
        }
        let now = Instant::now();
        self.open.store(true, Ordering::Release);
        now
    }
}

/// Several producers send `each` messages; the calling thread consumes. The time from the moment they may begin until
/// everything was consumed.
pub fn contend<P>(producers: usize, each: usize, capacity: usize, message: &Message) -> Result<Duration>
where
    P: Link<Message>,
    P::Tx: Clone,
{
    let (tx, mut rx) = P::pair(capacity);
    let gate = Gate::new();
    let mut threads = Vec::with_capacity(producers);
    for _ in 0..producers {
        let (mut tx, gate, message) = (tx.clone(), gate.clone(), message.clone());
        threads.push(spawn("lab-producer", move || {
            gate.pass();
            (0..each).all(|_| tx.send(message.clone()).is_ok())
        })?);
    }
    drop(tx);
    let start = gate.open(producers);
    let mut sum = 0;
    for _ in 0..producers * each {
        sum += rx.recv().ok_or(Error::Closed("a producer"))?.consume();
    }
    let time = start.elapsed();
    for thread in threads {
        if !join(thread)? {
            return Err(Error::Closed("the consumer"));
        }
    }
    if rx.try_recv().is_some() {
        return Err(Error::Sum { got: sum + 1, expected: sum });
    }
    check_sum(sum, (producers * each) as u64 * message.clone().consume())?;
    Ok(time)
}

/// Sends until `until`, but a few messages at least, and says how many.
fn send_until<T: Tx<Message>>(tx: &mut T, message: &Message, until: Instant) -> u64 {
    let mut sent = 0;
    loop {
        for _ in 0..32 {
            if tx.send(message.clone()).is_err() {
                return sent;
            }
            sent += 1;
        }
        if Instant::now() >= until {
            return sent;
        }
    }
}

fn consume_all<R: Rx<Message>>(mut rx: R) -> u64 {
    let mut sum = 0;
    while let Some(message) = rx.recv() {
        sum += message.consume();
    }
    sum
}

/// One producer sends for `duration`. Messages a second, counted until the last was consumed.
pub fn stream_one<P: Link<Message>>(capacity: usize, message: &Message, duration: Duration) -> Result<f64> {
    let (mut tx, rx) = P::pair(capacity);
    let consumer = spawn("lab-consumer", move || consume_all(rx))?;
    let start = Instant::now();
    let sent = send_until(&mut tx, message, start + duration);
    drop(tx);
    let sum = join(consumer)?;
    let rate = sent as f64 / start.elapsed().as_secs_f64();
    check_sum(sum, sent * message.clone().consume())?;
    Ok(rate)
}

/// Several producers send for `duration`. Messages a second, counted until the last was consumed.
pub fn stream_many<P>(producers: usize, capacity: usize, message: &Message, duration: Duration) -> Result<f64>
where
    P: Link<Message>,
    P::Tx: Clone,
{
    let (tx, rx) = P::pair(capacity);
    // An overloaded machine takes its time to start a thread, which is not the queue's.
    let gate = Gate::new();
    let mut threads = Vec::with_capacity(producers);
    for _ in 0..producers {
        let (mut tx, gate, message) = (tx.clone(), gate.clone(), message.clone());
        threads.push(spawn("lab-producer", move || {
            gate.pass();
            send_until(&mut tx, &message, Instant::now() + duration)
        })?);
    }
    drop(tx);
    let start = gate.open(producers);
    let sum = consume_all(rx);
    let time = start.elapsed();
    let mut sent = 0;
    for thread in threads {
        sent += join(thread)?;
    }
    check_sum(sum, sent * message.clone().consume())?;
    Ok(sent as f64 / time.as_secs_f64())
}

/// Keeps the core busy for so long.
#[inline]
pub fn busy_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        spin_loop();
    }
}

/// What a slow consumer does to its producer.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// From the first send until everything was consumed.
    pub total: Duration,
    /// What the producer used of a processor in that time, where the system can tell.
    pub producer: Option<Duration>,
    /// Messages sent and not received.
    pub lost: u64,
    /// The most messages that were seen in the queue.
    pub depth: u64,
}

/// A producer that sends `count` messages as fast as it may to a consumer that works `work` on each.
pub fn backpressure<P: Link<Message>>(
    capacity: usize,
    count: u64,
    work: Duration,
    message: &Message,
) -> Result<Pressure> {
    let (mut tx, mut rx) = P::pair(capacity);
    let sent = Arc::new(AtomicU64::new(0));
    let sent_so_far = sent.clone();
    let consumer = spawn("lab-consumer", move || {
        let (mut received, mut sum, mut depth) = (0, 0, 0);
        loop {
            // Sends that were counted before the receive, less receives: never more than are in the queue.
            depth = depth.max(sent_so_far.load(Ordering::Acquire).saturating_sub(received));
            let Some(message) = rx.recv() else { break };
            received += 1;
            busy_for(work);
            sum += message.consume();
        }
        (received, sum, depth, Instant::now())
    })?;
    let cpu = thread_cpu();
    let start = Instant::now();
    for _ in 0..count {
        tx.send(message.clone()).map_err(|Gone| Error::Closed("the consumer"))?;
        sent.fetch_add(1, Ordering::Release);
    }
    let producer = cpu.zip(thread_cpu()).map(|(before, after)| after.saturating_sub(before));
    drop(tx);
    let (received, sum, depth, end) = join(consumer)?;
    if received >= count {
        check_sum(sum, count * message.clone().consume())?;
    }
    if depth > capacity as u64 {
        return Err(Error::Overfull { depth, capacity: capacity as u64 });
    }
    Ok(Pressure { total: end - start, producer, lost: count.saturating_sub(received), depth })
}

/// What the consumer of [`backpressure`] takes without a queue.
pub fn work_alone(count: u64, work: Duration, message: &Message) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        busy_for(work);
        black_box(message.clone().consume());
    }
    start.elapsed()
}

/// Processor time of the calling thread, where the system can tell.
#[cfg(unix)]
pub fn thread_cpu() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).ok()
}

/// Processor time of the calling thread, where the system can tell.
#[cfg(not(unix))]
pub fn thread_cpu() -> Option<Duration> {
    None
}

/// Threads that keep all cores busy until it is dropped.
#[derive(Debug)]
pub struct Overload {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Overload {
    /// Starts so many.
    pub fn start(threads: usize) -> Result<Self> {
        let mut overload = Self { stop: Arc::new(AtomicBool::new(false)), threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let stop = overload.stop.clone();
            overload.threads.push(spawn("lab-load", move || {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })?);
        }
        Ok(overload)
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // it cannot panic
        }
    }
}
