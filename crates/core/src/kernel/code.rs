//! The code of a kernel for processors: what it sees of a launch, and the threads it has.

use std::{fmt, sync::Arc};

use arrayvec::ArrayVec;
use bytemuck::{AnyBitPattern, NoUninit};

use super::{
    launch::LaunchBody,
    spec::{Binding, Dim3, MAX_BINDINGS},
};

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
    pub(super) fn address(&self) -> usize {
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
        let (x, y) = (u64::from(launch.grid().x), u64::from(launch.grid().y));
        let id = [index % x, index / x % y, index / (x * y)].map(|n| n as u32);
        Self {
            id: id.into(),
            index,
            grid: launch.grid(),
            block: launch.block(),
            params: launch.params(),
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
    #[inline]
    pub fn new(launch: &'a LaunchBody, arguments: Arguments<'a>, threads: &'a dyn Threads) -> Self {
        Self { grid: launch.grid(), block: launch.block(), params: launch.params(), arguments, threads }
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
