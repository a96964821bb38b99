//! The kernels of a device, compiled once for each content.
//!
//! Whoever asks for a kernel first makes it; who asks for the same one meanwhile waits for that, and nobody else waits for
//! anything. A driver that hangs may not come back from compiling, so on a device with a queue of its own that is done by
//! a thread that nobody needs, and all waits end.

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    backend::DeviceKind,
    kernel::{Binding, CpuKernel, Dim3, Kernel, KernelSpec},
    road::{Core, Drive},
};

/// Kernels that are kept although nobody holds them.
const KEPT: usize = 1024;
/// How often one who waits looks whether that is still worthwhile.
const LOOK: Duration = Duration::from_millis(5);
/// How long compiling may take on a device that does nothing else, if its timeout is shorter: drivers may need seconds.
const COMPILING: Duration = Duration::from_secs(60);

/// What makes two kernels the same. Code for the CPU is compared by where it is: closures cannot be looked into.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Content {
    name: Arc<str>,
    bindings: Vec<Binding>,
    params: usize,
    block: Dim3,
    cpu: Option<usize>,
    wgsl: Option<Arc<str>>,
}

impl Content {
    fn of(spec: &KernelSpec, kind: DeviceKind) -> Self {
        let on_cpu = kind == DeviceKind::Cpu;
        Self {
            name: spec.name.clone(),
            bindings: spec.bindings.clone(),
            params: spec.params,
            block: spec.block,
            cpu: spec.cpu.as_ref().filter(|_| on_cpu).map(CpuKernel::address),
            wgsl: spec.wgsl.clone().filter(|_| !on_cpu),
        }
    }
}

/// A place for a kernel.
enum Entry {
    Made(Kernel),
    InTheMaking,
}

#[derive(Default)]
pub(crate) struct Kernels {
    known: Mutex<HashMap<Content, Entry>>,
    /// One was made, or could not be.
    changed: Condvar,
    compiled: AtomicU64,
    reused: AtomicU64,
}

/// What came of asking for a kernel.
enum Found {
    Kernel(Kernel),
    /// The caller makes it.
    Nothing(Making),
    /// Somebody else still makes it.
    InTheMaking,
}

/// The place of a kernel that is being made. If that fails, it is free again.
struct Making {
    kernels: Arc<Kernels>,
    content: Content,
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut known = self.kernels.known();
        if let Some(Entry::InTheMaking) = known.get(&self.content) {
            known.remove(&self.content);
        }
        drop(known);
        self.kernels.changed.notify_all();
    }
}

impl Making {
    fn done(self, kernel: &Kernel) {
        let mut known = self.kernels.known();
        self.kernels.compiled.fetch_add(1, Ordering::Relaxed);
        if known.len() >= KEPT {
            known.retain(|_, entry| !matches!(entry, Entry::Made(kernel) if Arc::strong_count(&kernel.inner) == 1));
        }
        known.insert(self.content.clone(), Entry::Made(kernel.clone()));
    }
}

impl Kernels {
    fn known(&self) -> MutexGuard<'_, HashMap<Content, Entry>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel of this content, or the right to make it. Waits a moment for somebody else who does.
    fn find(self: &Arc<Self>, content: &Content) -> Found {
        let mut known = self.known();
        if let Some(Entry::InTheMaking) = known.get(content) {
            (known, _) = self.changed.wait_timeout(known, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        match known.get(content) {
            Some(Entry::Made(kernel)) => {
                self.reused.fetch_add(1, Ordering::Relaxed);
                Found::Kernel(kernel.clone())
            }
            Some(Entry::InTheMaking) => Found::InTheMaking,
            None => {
                known.insert(content.clone(), Entry::InTheMaking);
                Found::Nothing(Making { kernels: self.clone(), content: content.clone() })
            }
        }
    }

    /// Compiled, and found.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.compiled.load(Ordering::Relaxed), self.reused.load(Ordering::Relaxed))
    }
}

impl Core {
    /// The kernel of this content, compiled if it is new.
    pub(crate) fn kernel(&self, spec: &KernelSpec) -> Result<Kernel> {
        let (content, start) = (Content::of(spec, self.info.kind), Instant::now());
        loop {
            match self.kernels.find(&content) {
                Found::Kernel(kernel) => return Ok(kernel),
                Found::Nothing(making) => return self.make(making, spec.clone(), start),
                Found::InTheMaking => self.may_wait_for_compiling(start)?,
            }
        }
    }

    fn make(&self, making: Making, spec: KernelSpec, start: Instant) -> Result<Kernel> {
        let (id, backend, launches) = (self.id, self.backend.clone(), self.launches.clone());
        let compile = move || {
            let code = backend.compile(&spec)?;
            let kernel = Kernel::new(id, spec, code, launches);
            making.done(&kernel);
            Ok(kernel)
        };
        if let Drive::Direct(_) = self.drive {
            return compile();
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("millrace-compile".into());
        // What it captured is gone before it answers: who let go of the device then does not find it still there.
        let thread = thread.spawn(move || {
            let made = compile();
            let _ = answer.send(made);
        });
        thread.map_err(|error| Error::Thread(error.to_string().into()))?;
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(made) => return made,
                Err(mpsc::RecvTimeoutError::Timeout) => self.may_wait_for_compiling(start)?,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::Panicked("compiling the kernel".into()));
                }
            }
        }
    }

    /// Fails if a wait that began then has lasted long enough: a device that has work and is stuck will not compile.
    fn may_wait_for_compiling(&self, start: Instant) -> Result<()> {
        if let Some(error) = self.watch.lost() {
            return Err(error);
        }
        let timeout = self.options.timeout;
        let is_idle = !matches!(&self.drive, Drive::Line(line) if line.len() > 0);
        let patience = if is_idle { timeout.max(COMPILING) } else { timeout };
        if start.elapsed() < patience { Ok(()) } else { Err(Error::Stalled(patience)) }
    }
}
