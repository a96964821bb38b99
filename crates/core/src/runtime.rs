//! The runtime: which devices there are, and how they are opened.

use std::{fmt, sync::Arc};

use crate::{
    Error, Result,
    backend::{DeviceKind, Engine},
    device::{Device, DeviceOptions},
};

/// A device that a provider knows of, usable or not.
///
/// ```
/// let found = &millrace::runtime().devices()[0];
/// assert_eq!((&*found.id, found.kind.name(), &found.unavailable), ("cpu", "cpu", &None));
/// ```
#[derive(Debug, Clone)]
pub struct Found {
    /// How users name it: `cpu`, `gpu:0`, `cuda:0`.
    pub id: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// What the vendor calls it.
    pub name: String,
    /// Why it cannot be used, if it cannot.
    pub unavailable: Option<String>,
}

/// A source of devices of one kind.
///
/// ```
/// use millrace::{DeviceKind, Engine, Found, Provider, Result, Runtime, cpu::CpuThreads};
///
/// /// The CPU with one thread, under another name.
/// struct Quiet;
///
/// impl Provider for Quiet {
///     fn list(&self) -> Vec<Found> {
///         let (id, name) = ("quiet".to_owned(), "one thread".to_owned());
///         vec![Found { id, kind: DeviceKind::Cpu, name, unavailable: None }]
///     }
///     fn open(&self, id: &str) -> Result<Engine> {
///         CpuThreads(1).open(id)
///     }
/// }
///
/// let runtime = Runtime::new(vec![Box::new(Quiet)]);
/// assert_eq!(runtime.open("quiet")?.health().workers, 1);
/// assert!(runtime.open("cpu").is_ok(), "by its kind");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Provider: Send + Sync + 'static {
    /// The devices it knows of. A kind that is not available at all is one entry that says why.
    fn list(&self) -> Vec<Found>;
    /// The id of the device that is meant by `wanted`: an id, or a kind, whose first available one it is.
    fn find(&self, wanted: &str) -> Option<String> {
        let meant = |found: &Found| found.id == wanted || found.kind.name() == wanted;
        self.list().into_iter().find(|found| found.unavailable.is_none() && meant(found)).map(|found| found.id)
    }
    /// Opens one of them, by its id. Every call makes a device of its own, which shares no fate with others.
    fn open(&self, id: &str) -> Result<Engine>;
}

/// A kind of device that this build cannot offer, so that users learn why.
///
/// ```
/// use millrace_core::{DeviceKind, Runtime, Unavailable};
/// let runtime = Runtime::new(vec![Box::new(Unavailable::new(DeviceKind::Cuda, "built without CUDA"))]);
/// let error = runtime.open("cuda").unwrap_err();
/// assert!(error.to_string().contains("built without CUDA"));
/// ```
#[derive(Debug, Clone)]
pub struct Unavailable {
    kind: DeviceKind,
    reason: String,
}

impl Unavailable {
    /// No device of this kind, for this reason.
    pub fn new(kind: DeviceKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

impl Provider for Unavailable {
    fn list(&self) -> Vec<Found> {
        let (id, name) = (self.kind.name().to_owned(), "none".to_owned());
        vec![Found { id, kind: self.kind, name, unavailable: Some(self.reason.clone()) }]
    }

    fn open(&self, id: &str) -> Result<Engine> {
        Err(Error::NoSuchDevice { wanted: id.into(), known: self.reason.as_str().into() })
    }
}

/// The devices a program can use. There is no global state: two runtimes know nothing of each other.
///
/// ```
/// let runtime = millrace::runtime();
/// for device in runtime.devices() {
///     println!("{}: {}", device.id, device.unavailable.as_deref().unwrap_or("ready"));
/// }
/// let error = runtime.open("abacus").unwrap_err();
/// assert!(error.to_string().contains("there is cpu"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones know the same devices.
#[derive(Clone)]
pub struct Runtime {
    providers: Arc<[Arc<dyn Provider>]>,
}

impl Runtime {
    /// A runtime over some providers. Programs that use the `millrace` crate get one with all of them.
    ///
    /// ```
    /// use millrace::{Runtime, cpu::CpuProvider};
    /// let runtime = Runtime::new(vec![Box::new(CpuProvider)]);
    /// assert!(runtime.open("cpu").is_ok() && runtime.open("gpu").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(providers: Vec<Box<dyn Provider>>) -> Self {
        millrace_ring::prepare(); // before a device starts its workers
        Self { providers: providers.into_iter().map(Arc::from).collect() }
    }

    /// Every device there is, also those that cannot be used.
    ///
    /// ```
    /// let devices = millrace::runtime().devices();
    /// assert!(devices.iter().any(|device| device.id == "cpu" && device.unavailable.is_none()));
    /// ```
    pub fn devices(&self) -> Vec<Found> {
        self.providers.iter().flat_map(|provider| provider.list()).collect()
    }

    /// Opens a device by its id (`gpu:0`) or kind (`gpu`, its first available one), with the usual options.
    ///
    /// ```
    /// let (one, other) = (millrace::runtime().open("cpu")?, millrace::runtime().open("cpu")?);
    /// assert_eq!(one.info().id, other.info().id);
    /// let buffer = one.allocate(4)?;
    /// assert!(other.buffer(buffer.id()).is_err(), "each is a context of its own");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(&self, device: &str) -> Result<Device> {
        self.open_with(device, DeviceOptions::default())
    }

    /// Opens a device.
    ///
    /// ```
    /// let options = millrace::DeviceOptions::default().budget(1 << 20);
    /// let device = millrace::runtime().open_with("cpu", options)?;
    /// assert_eq!(device.memory().budget, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(&self, device: &str, options: DeviceOptions) -> Result<Device> {
        for provider in self.providers.iter() {
            if let Some(id) = provider.find(device) {
                return Device::open_from(self, provider, &id, options);
            }
        }
        let known: Vec<_> = self
            .devices()
            .iter()
            .map(|found| match &found.unavailable {
                None => found.id.clone(),
                Some(reason) => format!("{} ({reason})", found.id),
            })
            .collect();
        Err(Error::NoSuchDevice { wanted: device.into(), known: format!("there is {}", known.join(", ")).into() })
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.devices()).finish()
    }
}
