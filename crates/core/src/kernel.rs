//! Kernels: what they are called, what they bind, and the code for each kind of device.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arrayvec::ArrayVec;
use bytemuck::{AnyBitPattern, NoUninit};
use millrace_ring::{Loan, Recycle, Slab};

use crate::{
    Error, Result,
    backend::{Code, DeviceKind},
    memory::{Buffer, BufferSlice},
};

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
    /// Writes all of it and reads nothing: never-written bytes need not be made zero first.
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
    name: Arc<str>,
    bindings: Vec<Binding>,
    params: usize,
    block: Dim3,
    cpu: Option<CpuKernel>,
    wgsl: Option<Arc<str>>,
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

type PerGroup = dyn Fn(&mut Group<'_>) + Send + Sync;
type Whole = dyn Fn(&mut Launched<'_>) + Send + Sync;

/// Code for the CPU device.
///
/// ```
/// use millrace::{Access, CpuKernel, KernelSpec};
/// let device = millrace::runtime().open("cpu")?;
/// let reverse = KernelSpec::new("reverse")
///     .binding::<u8>("from", Access::Read)
///     .binding::<u8>("to", Access::Overwrite)
///     .cpu(CpuKernel::whole(|launch| {
///         let (from, to) = (launch.input::<u8>(0), launch.output::<u8>(1));
///         to.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
///     }));
/// let (stream, kernel) = (device.stream()?, device.kernel(&reverse)?);
/// let (from, to) = (device.adopt(&b"mill"[..])?, device.allocate(4)?);
/// stream.run(kernel.launch().bind(&from).bind(&to))?;
/// assert_eq!(&*stream.run(to.read(..))?, b"llim");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub enum CpuKernel {
    /// Called once for every group of the grid, on several threads. Each group writes its own piece of the outputs.
    PerGroup(Arc<PerGroup>),
    /// Called once for the launch, with all of the outputs; it may use the device's threads by itself.
    Whole(Arc<Whole>),
}

impl CpuKernel {
    /// Code that is called once for every group of the grid.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{Access, CpuKernel, KernelSpec};
    /// let spec = KernelSpec::new("count").binding::<u32>("out", Access::Overwrite).cpu(CpuKernel::per_group(|group| {
    ///     let start = group.start(0) as u32;
    ///     group.output::<u32>(0).iter_mut().zip(start..).for_each(|(out, n)| *out = n);
    /// }));
    /// let (stream, kernel, out) = (device.stream()?, device.kernel(&spec)?, device.allocate(24)?);
    /// stream.run(kernel.launch().bind(&out).over(6, 2))?; // three groups of two
    /// assert_eq!(stream.run(out.read(..))?.to::<u32>(), [0, 1, 2, 3, 4, 5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_group(code: impl Fn(&mut Group<'_>) + Send + Sync + 'static) -> Self {
        Self::PerGroup(Arc::new(code))
    }

    /// Code that is called once for the launch.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{Access, CpuKernel, KernelSpec};
    /// let sum = CpuKernel::whole(|launch| launch.output::<u8>(1)[0] = launch.input::<u8>(0).iter().sum());
    /// let spec = KernelSpec::new("sum").binding::<u8>("x", Access::Read).binding::<u8>("sum", Access::Overwrite);
    /// let spec = spec.cpu(sum);
    /// let (stream, x, out) = (device.stream()?, device.adopt(&[1, 2, 3][..])?, device.allocate(1)?);
    /// stream.run(device.kernel(&spec)?.launch().bind(&x).bind(&out))?;
    /// assert_eq!(&*stream.run(out.read(..))?, [6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn whole(code: impl Fn(&mut Launched<'_>) + Send + Sync + 'static) -> Self {
        Self::Whole(Arc::new(code))
    }
}

impl CpuKernel {
    /// Where the code is. It stays there as long as somebody has it, so among kernels that are held it names the code.
    fn address(&self) -> usize {
        match self {
            Self::PerGroup(code) => Arc::as_ptr(code).cast::<()>() as usize,
            Self::Whole(code) => Arc::as_ptr(code).cast::<()>() as usize,
        }
    }
}

impl fmt::Debug for CpuKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PerGroup(_) => "CpuKernel::PerGroup",
            Self::Whole(_) => "CpuKernel::Whole",
        })
    }
}

/// A bound buffer, as CPU code sees it.
///
/// ```
/// use millrace_core::Argument;
/// let mut out = [0; 2];
/// let mut argument = Argument::Output(&mut out);
/// if let Argument::Output(bytes) = std::mem::replace(&mut argument, Argument::Taken) {
///     bytes.fill(1);
/// }
/// assert_eq!(out, [1, 1]);
/// ```
#[derive(Debug)]
pub enum Argument<'a> {
    /// Bytes to read.
    Input(&'a [u8]),
    /// Bytes to write: all of them, or this group's.
    Output(&'a mut [u8]),
    /// An output that the code has already taken.
    Taken,
}

/// A launch's arguments, in the kernel's order.
///
/// ```
/// use millrace_core::{Argument, Arguments, MAX_BINDINGS};
/// let mut arguments = Arguments::new();
/// arguments.push(Argument::Input(b"abc"));
/// assert_eq!((arguments.len(), arguments.capacity()), (1, MAX_BINDINGS));
/// ```
pub type Arguments<'a> = ArrayVec<Argument<'a>, MAX_BINDINGS>;

/// What both kinds of CPU code get to see.
macro_rules! arguments {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// All elements of a binding that is only read.
            ///
            /// # Panics
            /// If the kernel does not declare binding `index` as read-only, or with elements of another size.
            pub fn input<T: AnyBitPattern>(&self, index: usize) -> &'a [T] {
                match self.arguments.get(index) {
                    Some(Argument::Input(bytes)) => bytemuck::cast_slice(bytes),
                    _ => panic!("binding {index} is not an input"),
                }
            }

            /// The elements of a written binding that are this call's to write. Each can be taken once.
            ///
            /// # Panics
            /// If the kernel does not declare binding `index` as written, or with elements of another size, or if it
            /// was taken before.
            pub fn output<T: AnyBitPattern + NoUninit>(&mut self, index: usize) -> &'a mut [T] {
                match self.arguments.get_mut(index).map(|a| std::mem::replace(a, Argument::Taken)) {
                    Some(Argument::Output(bytes)) => bytemuck::cast_slice_mut(bytes),
                    _ => panic!("binding {index} is not an output, or was taken before"),
                }
            }

            /// The launch's parameters.
            ///
            /// # Panics
            /// If the kernel declares parameters of another size.
            pub fn params<T: AnyBitPattern>(&self) -> T {
                bytemuck::pod_read_unaligned(self.params)
            }

            /// Groups of the launch.
            pub fn grid(&self) -> Dim3 {
                self.grid
            }

            /// Threads of a group.
            pub fn block(&self) -> Dim3 {
                self.block
            }
        }
    };
}

/// One group of a launch, for [`CpuKernel::per_group`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Access, CpuKernel, Dim3, KernelSpec};
/// let spec = KernelSpec::new("add").binding::<u32>("x", Access::Read).binding::<u32>("y", Access::Overwrite);
/// let spec = spec.params::<u32>().cpu(CpuKernel::per_group(|group| {
///     assert_eq!((group.grid(), group.block()), (Dim3::from(2), Dim3::from(2)));
///     let (start, add) = (group.start(1), group.params::<u32>());
///     assert_eq!((start, group.id.x), (2 * group.index as usize, group.index as u32));
///     let (x, y) = (group.input::<u32>(0), group.output::<u32>(1));
///     y.iter_mut().zip(&x[start..]).for_each(|(y, x)| *y = x + add);
/// }));
/// let (stream, add, x, y) = (device.stream()?, device.kernel(&spec)?, device.allocate(16)?, device.allocate(16)?);
/// stream.run(add.launch().bind(&x).bind(&y).over(4, 2).params(&7u32))?;
/// assert_eq!(stream.run(y.read(..))?.to::<u32>(), [7; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Group<'a> {
    /// Which of the grid's groups this is.
    pub id: Dim3,
    /// The same as one number.
    pub index: u64,
    grid: Dim3,
    block: Dim3,
    params: &'a [u8],
    arguments: Arguments<'a>,
    bindings: &'a [Binding],
}
arguments!(Group);

impl<'a> Group<'a> {
    /// For backends: group `index` of a launch.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{Access, Argument, Arguments, CpuKernel, Dim3, Group, KernelSpec};
    /// let spec = KernelSpec::new("k").binding::<u8>("x", Access::Overwrite).cpu(CpuKernel::whole(|_| {}));
    /// let launch = device.kernel(&spec)?.launch().grid([3, 2]).block(4);
    /// let (mut piece, mut arguments) = ([0; 4], Arguments::new());
    /// arguments.push(Argument::Output(&mut piece));
    /// let mut group = Group::new(4, launch.body(), spec.bindings(), arguments);
    /// assert_eq!((group.id, group.start(0)), (Dim3 { x: 1, y: 1, z: 0 }, 16));
    /// group.output::<u8>(0).fill(9);
    /// drop(group);
    /// assert_eq!(piece, [9; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(index: u64, launch: &'a LaunchBody, bindings: &'a [Binding], arguments: Arguments<'a>) -> Self {
        let (x, y) = (u64::from(launch.grid.x), u64::from(launch.grid.y));
        let id = [index % x, index / x % y, index / (x * y)].map(|n| n as u32);
        Self {
            id: id.into(),
            index,
            grid: launch.grid,
            block: launch.block,
            params: &launch.params,
            arguments,
            bindings,
        }
    }

    /// The position, in the whole of binding `index`, of the first element of this group's piece.
    pub fn start(&self, index: usize) -> usize {
        self.index as usize * piece(&self.bindings[index], self.block)
    }
}

/// Elements of a written binding that are one group's: one per thread, unless the kernel says more.
///
/// ```
/// use millrace_core::{Access, Binding, Dim3, piece};
/// let binding = Binding { name: "out".into(), access: Access::Overwrite, element: 4, per_thread: 3 };
/// assert_eq!(piece(&binding, Dim3::from([8, 2])), 48);
/// ```
pub fn piece(binding: &Binding, block: Dim3) -> usize {
    binding.per_thread * block.volume() as usize
}

/// A launch, for [`CpuKernel::whole`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use millrace::{Access, CpuKernel, KernelSpec};
/// let spec = KernelSpec::new("sum").binding::<u64>("out", Access::Overwrite).cpu(CpuKernel::whole(|launch| {
///     let sum = AtomicU64::new(0);
///     launch.threads().for_each(100, &|n| _ = sum.fetch_add(n, Ordering::Relaxed));
///     launch.output::<u64>(0)[0] = sum.into_inner();
/// }));
/// let (stream, out) = (device.stream()?, device.allocate(8)?);
/// stream.run(device.kernel(&spec)?.launch().bind(&out))?;
/// assert_eq!(stream.run(out.read(..))?.to::<u64>(), [4950]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Launched<'a> {
    grid: Dim3,
    block: Dim3,
    params: &'a [u8],
    arguments: Arguments<'a>,
    threads: &'a dyn Threads,
}
arguments!(Launched);

impl<'a> Launched<'a> {
    /// For backends: a launch over all of its arguments.
    pub fn new(launch: &'a LaunchBody, arguments: Arguments<'a>, threads: &'a dyn Threads) -> Self {
        Self { grid: launch.grid, block: launch.block, params: &launch.params, arguments, threads }
    }

    /// The device's threads.
    pub fn threads(&self) -> &'a dyn Threads {
        self.threads
    }
}

impl fmt::Debug for Launched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launched").field("grid", &self.grid).field("block", &self.block).finish_non_exhaustive()
    }
}

/// Over how many threads of a CPU device a launch goes. Other devices decide by themselves.
///
/// ```
/// use millrace::{Access, CpuKernel, KernelSpec, Spread};
/// let device = millrace::runtime().open("cpu")?;
/// let spec = KernelSpec::new("threads")
///     .binding::<u32>("out", Access::Overwrite)
///     .cpu(CpuKernel::whole(|launch| launch.output::<u32>(0)[0] = launch.threads().count() as u32));
/// let (stream, kernel, out) = (device.stream()?, device.kernel(&spec)?, device.allocate(4)?);
/// stream.run(kernel.launch().bind(&out).spread(Spread::One))?;
/// assert_eq!(stream.run(out.read(..))?.to::<u32>(), [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// As the kernel finds right for the work.
    #[default]
    Usual,
    /// One thread.
    One,
    /// All of them, also if the kernel would find the work too small.
    All,
}

/// The threads of a CPU device.
///
/// [`Launched`] shows them at work; `crates/cpu/src/threads.rs` has them.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Arguments, CpuKernel, KernelSpec, Launched, Threads};
///
/// /// The caller alone.
/// struct One;
///
/// impl Threads for One {
///     fn count(&self) -> usize {
///         1
///     }
///     fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
///         (0..n).for_each(each);
///     }
/// }
///
/// let launch = device.kernel(&KernelSpec::new("k").cpu(CpuKernel::whole(|_| {})))?.launch().grid(3);
/// let launched = Launched::new(launch.body(), Arguments::new(), &One);
/// assert_eq!((launched.threads().count(), launched.grid().x), (1, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Threads: Sync {
    /// How many can run at once.
    fn count(&self) -> usize;
    /// Whether all of them are to be used, however small the work.
    fn all_wanted(&self) -> bool {
        false
    }
    /// Calls `each` once with every number below `n`, on several threads, and returns when all calls have. Where memory has
    /// several nodes, a number belongs to the same node's threads in every call with the same `n`, if they find the time.
    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync));
}

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

/// What a launch consists of, for backends.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Access, CpuKernel, Dim3, KernelSpec, Spread};
/// let spec = KernelSpec::new("k").binding::<u8>("x", Access::Read).params::<u8>().cpu(CpuKernel::whole(|_| {}));
/// let (kernel, buffer) = (device.kernel(&spec)?, device.allocate(8)?);
/// let launch = kernel.launch().bind(buffer.slice(2..6)).params(&7u8).grid([3, 2]);
/// let body = launch.body();
/// assert_eq!((&**body.kernel().spec().name(), body.bindings()[0].range(), body.params()), ("k", 2..6, &[7][..]));
/// assert_eq!((body.grid(), body.block(), body.spread()), (Dim3::from([3, 2]), Dim3::ONE, Spread::Usual));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct LaunchBody {
    kernel: Option<Kernel>,
    bindings: ArrayVec<BufferSlice, MAX_BINDINGS>,
    /// Bindings that were given, also beyond what fits.
    bound: usize,
    params: ArrayVec<u8, MAX_PARAMS>,
    /// Bytes of parameters that were given, also beyond what fits.
    params_given: usize,
    grid: Dim3,
    block: Dim3,
    spread: Spread,
}

impl LaunchBody {
    /// The kernel to run.
    pub fn kernel(&self) -> &Kernel {
        match &self.kernel {
            Some(kernel) => kernel,
            None => unreachable!("a launch is made by its kernel"),
        }
    }

    /// What is bound, in the kernel's order.
    pub fn bindings(&self) -> &[BufferSlice] {
        &self.bindings
    }

    /// The parameters' bytes.
    pub fn params(&self) -> &[u8] {
        &self.params
    }

    /// Groups.
    pub fn grid(&self) -> Dim3 {
        self.grid
    }

    /// Threads of a group.
    pub fn block(&self) -> Dim3 {
        self.block
    }

    /// Over how many threads of a CPU it goes.
    pub fn spread(&self) -> Spread {
        self.spread
    }
}

impl Recycle for LaunchBody {
    fn recycle(&mut self) {
        self.params.clear();
        (self.bound, self.params_given) = (0, 0);
        (self.grid, self.block, self.spread) = (Dim3::ONE, Dim3::ONE, Spread::Usual);
        // Last, because what they own may panic when it is dropped; both are gone from here in any case.
        let _kernel = self.kernel.take();
        self.bindings.clear();
    }
}

/// A kernel with its arguments. It is written in place into memory that is used again, so building one allocates
/// nothing.
///
/// ```
/// use millrace::{Access, CpuKernel, KernelSpec, Spread};
/// let device = millrace::runtime().open("cpu")?;
/// let spec = KernelSpec::new("where")
///     .binding::<u32>("out", Access::Overwrite)
///     .params::<u32>()
///     .cpu(CpuKernel::per_group(|group| {
///         let (id, add) = (group.id, group.params::<u32>());
///         group.output::<u32>(0).fill(100 * id.y + id.x + add);
///     }));
/// let (stream, kernel, out) = (device.stream()?, device.kernel(&spec)?, device.allocate(4 * 6)?);
/// stream.run(kernel.launch().bind(&out).grid([3, 2]).params(&7u32))?;
/// assert_eq!(stream.run(out.read(..))?.to::<u32>(), [7, 8, 9, 107, 108, 109]);
/// let wide = kernel.launch().block([4, 2]).spread(Spread::All);
/// assert_eq!((wide.body().block().volume(), wide.body().spread()), (8, Spread::All));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Launch {
    body: Loan<LaunchBody>,
}

impl Launch {
    /// Binds the next buffer, or a part of one.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{Access, CpuKernel, Error, KernelSpec};
    /// let spec = KernelSpec::new("k").binding::<f32>("x", Access::ReadWrite).cpu(CpuKernel::whole(|_| {}));
    /// let (stream, kernel, buffer) = (device.stream()?, device.kernel(&spec)?, device.allocate(16)?);
    /// assert!(stream.run(kernel.launch().bind(buffer.slice(4..))).is_ok());
    /// assert!(matches!(stream.run(kernel.launch()), Err(Error::Bindings { expected: 1, given: 0, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn bind(mut self, slice: impl Into<BufferSlice>) -> Self {
        self.body.bound += 1;
        // Too many are counted, and answered with an error when the launch is submitted.
        let _ = self.body.bindings.try_push(slice.into());
        self
    }

    /// Sets the parameters.
    #[inline]
    pub fn params<T: NoUninit>(mut self, params: &T) -> Self {
        let bytes = bytemuck::bytes_of(params);
        self.body.params.clear();
        self.body.params_given = bytes.len();
        // Longer than any kernel's: answered with an error when the launch is submitted.
        let fits = &bytes[..bytes.len().min(MAX_PARAMS)];
        let _ = self.body.params.try_extend_from_slice(fits);
        self
    }

    /// Sets the number of groups.
    pub fn grid(mut self, groups: impl Into<Dim3>) -> Self {
        self.body.grid = groups.into();
        self
    }

    /// Sets the number of threads of a group.
    pub fn block(mut self, threads: impl Into<Dim3>) -> Self {
        self.body.block = threads.into();
        self
    }

    /// Sets over how many threads of a CPU device it goes.
    pub fn spread(mut self, spread: Spread) -> Self {
        self.body.spread = spread;
        self
    }

    /// Sets a one-dimensional geometry of at least `n` threads, in groups of `block`.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use millrace::{CpuKernel, Dim3, KernelSpec};
    /// let kernel = device.kernel(&KernelSpec::new("k").cpu(CpuKernel::whole(|_| {})))?;
    /// let launch = kernel.launch().over(1000, 64);
    /// assert_eq!((launch.body().grid(), launch.body().block()), (Dim3::from(16), Dim3::from(64)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(self, n: usize, block: u32) -> Self {
        let groups = u32::try_from(n.div_ceil(block.max(1) as usize)).unwrap_or(u32::MAX);
        self.grid(groups).block(block)
    }

    /// For backends.
    pub fn body(&self) -> &LaunchBody {
        &self.body
    }

    pub(crate) fn check(&self, device: u64, limits: &crate::backend::Limits) -> Result<()> {
        let body = &*self.body;
        let kernel = &*body.kernel().inner;
        if kernel.device != device {
            return Err(Error::WrongDevice { what: "kernel" });
        }
        let declared = &kernel.spec.bindings;
        if body.bound != declared.len() {
            return Err(Error::Bindings {
                kernel: kernel.spec.name.clone(),
                expected: declared.len(),
                given: body.bound,
            });
        }
        if body.params_given != kernel.spec.params {
            return Err(Error::Parameters {
                kernel: kernel.spec.name.clone(),
                expected: kernel.spec.params,
                given: body.params_given,
            });
        }
        for (i, (slice, binding)) in body.bindings.iter().zip(declared).enumerate() {
            slice.check(device, binding.access.writes())?;
            for value in [slice.offset, slice.len] {
                if value % binding.element != 0 {
                    return Err(Error::Misaligned { value: value as u64, align: binding.element as u64 });
                }
            }
            for (j, other) in body.bindings[..i].iter().enumerate() {
                if other.buffer.same_as(&slice.buffer) && (binding.access.writes() || declared[j].access.writes()) {
                    return Err(Error::Aliased { first: j, second: i });
                }
            }
        }
        let (grid, block) = (body.grid.to_array(), body.block.to_array());
        let groups_fit = grid.iter().zip(limits.groups).all(|(&n, limit)| (1..=limit).contains(&n));
        let block_fits = (1..=u64::from(limits.threads)).contains(&body.block.volume());
        if !groups_fit || !block_fits {
            return Err(Error::Geometry { groups: grid, block });
        }
        Ok(())
    }

    /// The same launch once more, for another stream.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        let mut body = self.body.sibling().ok_or(Error::TooManyTickets(millrace_ring::MAX_OUT))?;
        body.kernel.clone_from(&self.body.kernel);
        body.bindings.clone_from(&self.body.bindings);
        body.params.clone_from(&self.body.params);
        (body.bound, body.params_given) = (self.body.bound, self.body.params_given);
        (body.grid, body.block, body.spread) = (self.body.grid, self.body.block, self.body.spread);
        Ok(Self { body })
    }

    /// Whether it is known to take less than so long.
    pub(crate) fn is_within(&self, time: Duration) -> bool {
        self.body.kernel().longest().is_some_and(|longest| longest < time)
    }
}

impl From<Buffer> for BufferSlice {
    fn from(buffer: Buffer) -> Self {
        let len = buffer.len();
        Self { buffer, offset: 0, len }
    }
}
