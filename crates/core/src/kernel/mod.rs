//! Kernels: what they are, what a device made of them, and how they are launched.

mod code;
mod launch;
mod spec;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_ring::Slab;

pub use code::{Argument, Arguments, CpuKernel, Group, Launched, Spread, Threads, piece};
pub use launch::{Launch, LaunchBody};
pub use spec::{Access, Binding, Dim3, KernelSpec, MAX_BINDINGS, MAX_PARAMS};

use crate::{
    Result,
    backend::{Code, DeviceKind},
};

/// A kernel that a device has accepted. Clones are handles of the same kernel.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let spec = millrace::KernelSpec::new("nothing").block(4).cpu(millrace::CpuKernel::whole(|_| {}));
/// let kernel = device.kernel(&spec)?;
/// assert_eq!((&**kernel.spec().name(), kernel.longest()), ("nothing", None));
/// device.stream()?.run(kernel.launch())?;
/// assert!(kernel.longest().is_some(), "it was launched");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Kernel {
    pub(crate) inner: Arc<KernelInner>,
}

pub(crate) struct KernelInner {
    pub(crate) device: u64,
    pub(crate) spec: KernelSpec,
    code: Code,
    launches: Arc<Slab<LaunchBody>>,
    /// The longest of its recent launches in nanoseconds; zero before the first.
    longest: AtomicU64,
    /// Its number in profiles; zero before it is in one.
    op: AtomicU32,
}

impl Kernel {
    pub(crate) fn new(device: u64, spec: KernelSpec, code: Code, launches: Arc<Slab<LaunchBody>>) -> Self {
        let (longest, op) = (AtomicU64::new(0), AtomicU32::new(0));
        Self { inner: Arc::new(KernelInner { device, spec, code, launches, longest, op }) }
    }

    /// For backends: what [`crate::Backend::compile`] made of it.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let spec = millrace::KernelSpec::new("nothing").cpu(millrace::CpuKernel::whole(|_| {}));
    /// assert!(device.kernel(&spec)?.code().is::<()>(), "for the CPU there was nothing to make");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn code(&self) -> &Code {
        &self.inner.code
    }

    /// What it was made from.
    pub fn spec(&self) -> &KernelSpec {
        &self.inner.spec
    }

    /// A launch of one group of one thread with nothing bound; say the rest on what is returned.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{CpuKernel, Dim3, KernelSpec};
    /// let kernel = device.kernel(&KernelSpec::new("nothing").block(64).cpu(CpuKernel::whole(|_| {})))?;
    /// let launch = kernel.launch();
    /// assert_eq!((launch.body().grid(), launch.body().block()), (Dim3::ONE, Dim3::from(64)), "the kernel's block");
    /// device.stream()?.run(launch)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If a million launches are being prepared or are in flight.
    #[inline]
    pub fn launch(&self) -> Launch {
        let Some(mut body) = self.inner.launches.take() else {
            panic!("{} launches are in flight", millrace_ring::MAX_OUT)
        };
        body.kernel = Some(self.clone());
        body.block = self.inner.spec.block;
        Launch { body }
    }

    /// The longest of its recent launches; none before the first.
    pub fn longest(&self) -> Option<Duration> {
        match self.inner.longest.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// Its number in profiles, found by its name the first time.
    pub(crate) fn op(&self, find: impl FnOnce(&Arc<str>) -> u32) -> u32 {
        match self.inner.op.load(Ordering::Relaxed) {
            0 => {
                let op = find(&self.inner.spec.name);
                self.inner.op.store(op, Ordering::Relaxed);
                op
            }
            op => op,
        }
    }

    /// For the driver: takes note of how long a launch took. An outlier is forgotten over some dozens of launches.
    pub(crate) fn took(&self, time: Duration) {
        let ns = (time.as_nanos() as u64).max(1);
        let longest = self.inner.longest.load(Ordering::Relaxed);
        let next = ns.max(longest - longest / 16);
        if next != longest {
            self.inner.longest.store(next, Ordering::Relaxed);
        }
    }
}

/// The kernels of a device, compiled once for each content.
#[derive(Default)]
pub(crate) struct Kernels {
    known: Mutex<HashMap<Content, Kernel>>,
    compiled: AtomicU64,
    reused: AtomicU64,
}

/// Kernels that are kept although nobody holds them.
const KEPT: usize = 1024;

/// What makes two kernels the same. Code for the CPU is compared by where it is: closures cannot be looked into.
#[derive(PartialEq, Eq, Hash)]
struct Content {
    name: Arc<str>,
    bindings: Vec<Binding>,
    params: usize,
    block: Dim3,
    cpu: Option<usize>,
    wgsl: Option<Arc<str>>,
}

impl Kernels {
    /// The kernel of this content, made by `make` if it is new.
    pub(crate) fn get(
        &self,
        kind: DeviceKind,
        spec: &KernelSpec,
        make: impl FnOnce() -> Result<Kernel>,
    ) -> Result<Kernel> {
        let on_cpu = kind == DeviceKind::Cpu;
        let content = Content {
            name: spec.name.clone(),
            bindings: spec.bindings.clone(),
            params: spec.params,
            block: spec.block,
            cpu: spec.cpu.as_ref().filter(|_| on_cpu).map(CpuKernel::address),
            wgsl: spec.wgsl.clone().filter(|_| !on_cpu),
        };
        // Held while compiling: who asks for the same kernel meanwhile gets that one.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known.get(&content) {
            self.reused.fetch_add(1, Ordering::Relaxed);
            return Ok(kernel.clone());
        }
        let kernel = make()?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        if known.len() >= KEPT {
            known.retain(|_, kernel| Arc::strong_count(&kernel.inner) > 1);
        }
        known.insert(content, kernel.clone());
        Ok(kernel)
    }

    /// Compiled, and found.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.compiled.load(Ordering::Relaxed), self.reused.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.inner.spec.name).finish()
    }
}
