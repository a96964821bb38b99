//! What a device offers to kernels that stay on it.

use std::{
    sync::{Arc, Weak, atomic::AtomicU32},
    time::Duration,
};

use crate::{
    Result,
    backend::{Code, Leave},
};

/// A place on a device for kernels that stay: a queue of its own, so that nothing else waits for them, and memory.
///
/// Who makes kernels resident writes one *program* that serves all of them, and runs it over and over: in *leases* that
/// end by themselves while the memory is shared, and in [exchanges](Self::exchange) while it is not.
///
/// A program is WGSL with an entry point `main` and one binding, `@group(0) @binding(0) var<storage, read_write>`, an
/// `array<atomic<u32>>` of all words.
///
/// The GPU device has the one there is, in `crates/gpu/src/resident`; `crates/resident/src/gpu` uses it.
pub trait Residence: Send + Sync {
    /// The memory, if host and running programs see each other's writes to it, and in the order they were made.
    fn shared(&self) -> Option<&[AtomicU32]>;

    /// How programs should be written for the device.
    fn shape(&self) -> Shape;

    /// Says what is wrong with a piece of WGSL, with the line.
    fn check(&self, name: &str, source: &str) -> Result<()>;

    /// Makes a program ready to run.
    fn compile(&self, source: &str) -> Result<Code>;

    /// Queues a program so many times in a row, one group each. If there is something queued that has not run, this may
    /// wait for it.
    fn submit(&self, program: &Code, leases: u32) -> Result<()>;

    /// Waits until everything that was submitted has run; false if that took longer than the timeout.
    fn wait(&self, timeout: Duration) -> Result<bool>;

    /// Without shared memory: writes the first words, runs the program once, and reads them back.
    fn exchange(&self, program: &Code, words: &mut [u32], timeout: Duration) -> Result<()>;

    /// Threads that call it: see [`Backend::attend`](crate::Backend::attend).
    fn attend(&self, threads: Weak<dyn Leave>);

    /// Nothing is asked of it any more; it may hang, and must not make the caller wait.
    fn abandon(&self);
}

/// How programs that stay are to be written for a device.
///
/// ```
/// let shape = millrace_core::Shape::new(1, true, Some(65_536));
/// assert_eq!((shape.threads, shape.barriers, shape.turns), (1, true, Some(65_536)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// Threads of the one group. The first of them works, the others leave at once.
    pub threads: u32,
    /// Whether the order of writes has to be asked for, with barriers. Only where a group is one thread.
    pub barriers: bool,
    /// Turns that a thread can make in all its loops together, where the driver ends loops early.
    pub turns: Option<u32>,
}

impl Shape {
    /// So many threads, and whether barriers are needed, and how many turns all loops may make.
    pub fn new(threads: u32, barriers: bool, turns: Option<u32>) -> Self {
        Self { threads, barriers, turns }
    }
}

/// How a place is opened: see [`Backend::residence`](crate::Backend::residence).
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::Sharing;
/// let backend = device.backend();
/// assert!(backend.residence(1024, Sharing::Required).is_none(), "the CPU needs no such place");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// With memory that host and device see at once, or not at all.
    Required,
    /// With memory of its own.
    None,
}

/// A place, opened.
///
/// [`Backend::residence`](crate::Backend::residence) gives one, and [`Sharing`] shows how it is asked for.
pub type OpenResidence = Arc<dyn Residence>;
