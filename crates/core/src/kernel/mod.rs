//! Kernels: what they are, what a device made of them, and how they are launched.

mod cache;
mod code;
mod launch;
mod spec;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_ring::Slab;

pub(crate) use cache::Kernels;
pub use code::{Argument, Arguments, CpuKernel, Group, Launched, Spread, Threads, piece};
pub use launch::{Launch, LaunchBody};
pub use spec::{Access, Binding, Dim3, KernelSpec, MAX_BINDINGS, MAX_PARAMS};

use crate::backend::Code;

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

    /// For the driver: takes note of how many nanoseconds a launch took. An outlier is forgotten over some dozens of launches.
    pub(crate) fn took(&self, ns: u64) {
        let ns = ns.max(1);
        let longest = self.inner.longest.load(Ordering::Relaxed);
        let next = ns.max(longest - longest / 16);
        if next != longest {
            self.inner.longest.store(next, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.inner.spec.name).finish()
    }
}
