//! What a kernel is called, what it binds, and the code for each kind of device.

use std::sync::Arc;

use bytemuck::NoUninit;

use super::code::CpuKernel;
use crate::{Error, Result};

/// The most buffers one launch can bind.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Access, CpuKernel, KernelSpec, MAX_BINDINGS};
/// let spec = KernelSpec::new("all").cpu(CpuKernel::whole(|_| {}));
/// let with = |n: usize| (0..n).fold(spec.clone(), |spec, i| spec.binding::<u8>(format!("b{i}"), Access::Read));
/// assert!(device.kernel(&with(MAX_BINDINGS)).is_ok() && device.kernel(&with(MAX_BINDINGS + 1)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const MAX_BINDINGS: usize = 8;
/// The most bytes of parameters one launch can carry.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{CpuKernel, KernelSpec, MAX_PARAMS};
/// let spec = KernelSpec::new("long").cpu(CpuKernel::whole(|_| {}));
/// assert!(device.kernel(&spec.clone().params::<[u8; MAX_PARAMS]>()).is_ok());
/// assert!(device.kernel(&spec.params::<[u32; MAX_PARAMS]>()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const MAX_PARAMS: usize = 128;

/// Sizes in three directions.
///
/// ```
/// use millrace_core::Dim3;
/// let grid = Dim3::from([4, 2]);
/// assert_eq!((grid.volume(), grid.to_array()), (8, [4, 2, 1]));
/// assert_eq!(Dim3::from(1), Dim3::ONE);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// The direction that changes fastest.
    pub x: u32,
    /// The second direction.
    pub y: u32,
    /// The third direction.
    pub z: u32,
}

impl Dim3 {
    /// One in every direction.
    pub const ONE: Self = Self { x: 1, y: 1, z: 1 };

    /// The product of all three.
    pub fn volume(self) -> u64 {
        // Wraps only beyond limits that are checked before.
        u64::from(self.x).saturating_mul(u64::from(self.y)).saturating_mul(u64::from(self.z))
    }

    /// The three as an array, `x` first.
    pub fn to_array(self) -> [u32; 3] {
        [self.x, self.y, self.z]
    }
}

impl Default for Dim3 {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<u32> for Dim3 {
    fn from(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }
}

impl From<[u32; 2]> for Dim3 {
    fn from([x, y]: [u32; 2]) -> Self {
        Self { x, y, z: 1 }
    }
}

impl From<[u32; 3]> for Dim3 {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Self { x, y, z }
    }
}

/// What a kernel does with a binding.
///
/// ```
/// use millrace_core::Access;
/// assert!(Access::Overwrite.writes() && Access::ReadWrite.writes() && !Access::Read.writes());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Reads and writes it, or writes only some of it.
    ReadWrite,
    /// Writes all of it and reads nothing: never-written bytes need not be made zero first. A promise: the CPU device sees a
    /// grid that is too small to keep it and makes the bytes zero, but no GPU can tell, and what is not written there is what
    /// an earlier buffer of this context has left.
    Overwrite,
}

impl Access {
    /// Whether the kernel changes the binding.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

/// One buffer that a kernel takes.
///
/// ```
/// use millrace_core::{Access, KernelSpec};
/// let spec = KernelSpec::new("k").binding::<f32>("x", Access::Read);
/// let x = &spec.bindings()[0];
/// assert_eq!((&*x.name, x.access, x.element, x.per_thread), ("x", Access::Read, 4, 1));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Binding {
    /// What the kernel calls it.
    pub name: Arc<str>,
    /// What the kernel does with it.
    pub access: Access,
    /// Bytes of an element: offsets and lengths are multiples of it, and a group's piece is counted in it.
    pub element: usize,
    /// Elements that one thread of the grid writes.
    pub per_thread: usize,
}

/// A kernel as its author describes it: a name, its bindings, and code for the devices it can run on.
///
/// ```
/// use millrace_core::{Access, CpuKernel, Dim3, KernelSpec};
/// let double = KernelSpec::new("double")
///     .binding::<f32>("x", Access::Read)
///     .binding::<f32>("y", Access::Overwrite)
///     .block(64)
///     .cpu(CpuKernel::per_group(|group| {
///         let (x, y) = (group.input::<f32>(0), group.output::<f32>(1));
///         let start = group.start(1);
///         for (i, y) in y.iter_mut().enumerate() {
///             *y = 2.0 * x[start + i];
///         }
///     }));
/// assert_eq!((&**double.name(), double.bindings().len(), double.params_len()), ("double", 2, 0));
/// assert_eq!(double.block_size(), Dim3::from(64));
/// assert!(double.cpu_code().is_some() && double.wgsl_code().is_none(), "it runs on the CPU alone");
/// ```
#[derive(Debug, Clone)]
pub struct KernelSpec {
    pub(super) name: Arc<str>,
    pub(super) bindings: Vec<Binding>,
    pub(super) params: usize,
    pub(super) block: Dim3,
    pub(super) cpu: Option<CpuKernel>,
    pub(super) wgsl: Option<Arc<str>>,
}

impl KernelSpec {
    /// A kernel without bindings, parameters or code.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), bindings: Vec::new(), params: 0, block: Dim3::ONE, cpu: None, wgsl: None }
    }

    /// Adds a buffer of `T`s.
    pub fn binding<T>(self, name: impl Into<Arc<str>>, access: Access) -> Self {
        self.binding_of(Binding { name: name.into(), access, element: size_of::<T>(), per_thread: 1 })
    }

    /// Adds a buffer, described in full.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{Access, Binding, CpuKernel, KernelSpec};
    /// let pairs = Binding { name: "out".into(), access: Access::Overwrite, element: 4, per_thread: 2 };
    /// let spec = KernelSpec::new("pairs").binding_of(pairs).cpu(CpuKernel::per_group(|group| {
    ///     let index = group.index as u32;
    ///     group.output::<u32>(0).fill(index); // two elements, the group's one thread writes both
    /// }));
    /// let (stream, kernel, out) = (device.stream()?, device.kernel(&spec)?, device.allocate(16)?);
    /// stream.run(kernel.launch().bind(&out).grid(2))?;
    /// assert_eq!(stream.run(out.read(..))?.to::<u32>(), [0, 0, 1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn binding_of(mut self, binding: Binding) -> Self {
        self.bindings.push(binding);
        self
    }

    /// Says that every launch carries a `T` of parameters.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{CpuKernel, Error, KernelSpec};
    /// let spec = KernelSpec::new("scaled").params::<f32>().cpu(CpuKernel::whole(|_| {}));
    /// assert_eq!(spec.params_len(), 4);
    /// let (stream, kernel) = (device.stream()?, device.kernel(&spec)?);
    /// assert!(stream.run(kernel.launch().params(&2f32)).is_ok());
    /// assert!(matches!(stream.run(kernel.launch()), Err(Error::Parameters { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn params<T: NoUninit>(mut self) -> Self {
        self.params = size_of::<T>();
        self
    }

    /// Sets the threads of a group that launches have unless they say otherwise. WGSL code has this workgroup size.
    pub fn block(mut self, threads: impl Into<Dim3>) -> Self {
        self.block = threads.into();
        self
    }

    /// Sets the code for GPU devices: a WGSL module with an entry point `main`, whose workgroup size is the kernel's
    /// [block](Self::block). The bindings are `@group(0) @binding(0)` and so on, in order, as storage: `read` for
    /// [`Access::Read`], `read_write` for the others. Parameters are `var<immediate> params`, a struct of 4-byte words.
    ///
    /// ```
    /// use millrace_core::{Access, KernelSpec};
    /// let double = KernelSpec::new("double").binding::<f32>("x", Access::ReadWrite).block(64).wgsl(
    ///     "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
    ///     @compute @workgroup_size(64)
    ///     fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    ///         if id.x < arrayLength(&x) { x[id.x] *= 2.0; }
    ///     }",
    /// );
    /// assert!(double.wgsl_code().is_some_and(|code| code.contains("fn main")));
    /// ```
    pub fn wgsl(mut self, source: impl Into<Arc<str>>) -> Self {
        self.wgsl = Some(source.into());
        self
    }

    /// Sets the code for the CPU device.
    pub fn cpu(mut self, code: CpuKernel) -> Self {
        self.cpu = Some(code);
        self
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its buffers, in the order a launch binds them.
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// Bytes of parameters.
    pub fn params_len(&self) -> usize {
        self.params
    }

    /// Threads of a group, where a launch does not say otherwise.
    pub fn block_size(&self) -> Dim3 {
        self.block
    }

    /// The code for GPU devices.
    pub fn wgsl_code(&self) -> Option<&Arc<str>> {
        self.wgsl.as_ref()
    }

    /// The code for the CPU device.
    pub fn cpu_code(&self) -> Option<&CpuKernel> {
        self.cpu.as_ref()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid(format!("kernel {}: {what}", self.name).into()));
        if self.bindings.len() > MAX_BINDINGS {
            return invalid(format!("{} bindings are more than {MAX_BINDINGS}", self.bindings.len()));
        }
        if self.params > MAX_PARAMS {
            return invalid(format!("{} bytes of parameters are more than {MAX_PARAMS}", self.params));
        }
        if let Some(empty) = self.bindings.iter().find(|b| b.element == 0 || b.per_thread == 0) {
            return invalid(format!("binding {} has elements of size zero", empty.name));
        }
        Ok(())
    }
}
